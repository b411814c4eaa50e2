"""Run folders that were never run: the files as fedetf writes them, with made-up numbers."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedetf.config import resolve


def make_run(
    folder: Path,
    method: str = "fedetf",
    seed: int = 7,
    rounds: int = 5,
    clients: int = 4,
    measures: Sequence[str] = (),
    classes: list[str] | None = None,
    level: float = 0.5,
    majority: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Write a finished run and return its result; ``level`` is the accuracy that it reaches."""
    rng = random.Random(f"{method} {seed} {settings}")
    classes = classes or [str(c) for c in range(10)]
    folder.mkdir(parents=True)
    chosen = {"method.name": method, "seed": seed, "train.rounds": rounds, "data.clients": clients, **settings}
    (folder / "config.toml").write_text(resolve(None, chosen).to_toml(), "utf-8")
    lines = []
    for t in range(1, rounds + 1):
        reached = level * (1 - math.exp(-6 * t / rounds)) + rng.uniform(-0.02, 0.02)
        line = {"round": t, "participants": list(range(clients)), "loss": 2 * math.exp(-3 * t / rounds)}
        if method != "fedproto":
            line["general"] = reached
        line |= {"bytes_up": 4_000_000, "bytes_down": 4_000_000, "seconds": 1.5, "images": 1000}
        if measures:
            line["measures"] = {name: 1 / (1 + t / rounds) + rng.uniform(-0.05, 0.05) for name in measures}
        lines.append(line)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    draws = [[int(rng.paretovariate(0.6)) - 1 for _ in classes] for _ in range(clients)]
    held = [{"client": k, "counts": [min(n, 500) for n in row], "train": [], "test": []} for k, row in enumerate(draws)]
    partition = {"classes": classes, "draws": 1, "repaired": [], "clients": held}
    (folder / "partition.json").write_text(json.dumps(partition), "utf-8")
    general = [line["general"] for line in lines[-5:] if "general" in line]
    last5 = sum(general) / len(general) if general else None
    personal = min(1.0, level + 0.25 + rng.uniform(-0.02, 0.02))
    result = {
        "method": method, "dataset": "digits", "model": "cnn", "seed": seed, "clients": clients, "rounds": rounds,
        "general": general[-1] if general else None, "general_last5": last5, "personal": personal,
        "personal_per_client": [personal] * clients, "personal_majority": majority,
        "personal_curve": [min(1.0, level + 0.01 * i) for i in range(22)] if method == "fedetf" else [],
        "epochs_train": 3.0 * rounds, "epochs_personal": 3.0, "clients_without_test": 0, "clients_with_one_class": 0,
        "refused_updates": 0, "bytes_up": 4_000_000 * rounds, "bytes_down": 4_000_000 * rounds,
        "images_per_second": 1000.0,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result), "utf-8")
    return result
