"""fluke: one process, one client after the other."""

from typing import Any

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from torch import nn

from fedetf.bench.peers.work import MOMENTUM, WEIGHT_DECAY, Turns, Work


def play(turns: Turns, work: Work, rounds: int) -> None:
    """Rounds of all clients."""
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimiser = OptimizerConfigurator(
        {"name": "SGD", "lr": work.lr, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    )
    clients = [
        Client(client, _loader(work, client), None, optimiser, nn.CrossEntropyLoss(), local_epochs=1)
        for client in range(len(work.parts))
    ]
    federation = FedAVG(
        len(clients), None, None, clients=clients, server=Server(work.net, None, clients, weighted=True)
    )
    federation.attach(_Watch(turns))
    federation.run(rounds, eligible_perc=1.0)


def _loader(work: Work, client: int) -> Any:
    classes = work.net[-1].out_features  # type: ignore[index]  # it is a Sequential
    return FastDataLoader(
        *work.parts[client], num_labels=classes, batch_size=work.batch_size, shuffle=True, skip_singleton=False
    )


class _Watch:
    """Is told of every event; two of them are the ends of a round."""

    def __init__(self, turns: Turns):
        self.start_round = lambda **_: turns.wait()
        self.end_round = lambda **_: turns.done()

    def __getattr__(self, event: str) -> Any:
        return lambda *_, **__: None
