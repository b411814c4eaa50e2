"""Methods and settings that use the whole surface, which every engine has to run to the same bits."""

import os
import signal
from pathlib import Path

from fedetf.federation import Listener

EXAMPLES = Path(__file__).parents[1] / "examples" / "more_methods.py"
FOUR = [f"{EXAMPLES}:{name}" for name in ("Contrast", "Correct", "Mirror", "Agree")]
SMALL = {"data.limit": 120, "data.test_limit": 40, "train.batch_size": 16, "personal.enabled": False}
OPTIONS = {"clients": 4, "alpha": 0.5, "participation": 0.75, "rounds": 3, "epochs": 1}
PIPELINES = {
    "adam": {"server.optimiser": "adam"},
    "median": {"server.combine": "median"},
    "private": {"update.clip": 1.0, "update.noise": 0.5},
    "top_k": {"update.top_k": 0.01},
    "bits": {"update.bits": 4, "server.optimiser": "momentum", "server.combine": "centred_clip"},
}


class KillAfter(Listener):
    """Ends the process with SIGKILL after a round."""

    def __init__(self, round: int):
        self.round = round

    def client_done(self, record) -> None:
        if record.round == self.round and record.trained == 2:
            os.kill(os.getpid(), signal.SIGKILL)
