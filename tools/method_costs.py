"""Write what each method costs to src/fedetf/methods/costs.json, for `fedetf list methods`."""

import json
from dataclasses import asdict
from pathlib import Path

from fedetf.engines.costs import costs_of
from fedetf.methods import METHODS

PLACE = Path(__file__).parents[1] / "src/fedetf/methods/costs.json"

if __name__ == "__main__":
    costs = {name: asdict(costs_of(method())) for name, method in METHODS.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in costs.items())
    PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
