"""FedLab's standalone simulation: one process, one client after the other."""

from typing import Any

import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

from fedetf.bench.peers.work import Turns, Work


def play(turns: Turns, work: Work, rounds: int) -> None:
    """Rounds of all clients."""
    layout = torch.contiguous_format  # it cannot flatten weights in another
    net = work.net.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stubs lack it
    handler = FedAvgServerHandler(net, rounds, sample_ratio=1.0)
    trainer = FedAvgSerialClientTrainer(net, len(work.parts))
    trainer.setup_dataset(_Data(work))
    trainer.setup_optim(epochs=1, batch_size=work.batch_size, lr=work.lr)
    trainer.optimizer = work.optimiser(trainer.model)
    _Pipeline(handler, trainer, turns).main()


class _Data(FedDataset):  # type: ignore[misc]  # without its package, it is of no type
    def __init__(self, work: Work):
        self._work = work

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Any:
        if self._work.tuned:
            return self._work.batches(id)
        return DataLoader(TensorDataset(*self._work.parts[id]), batch_size, shuffle=True)


class _Pipeline(StandalonePipeline):  # type: ignore[misc]  # without its package, it is of no type
    """Its loop with the calls of the bench around a round; ``evaluate`` is where a round ends."""

    def __init__(self, handler: Any, trainer: Any, turns: Turns):
        super().__init__(handler, trainer)
        self._turns = turns
        turns.wait()

    def evaluate(self) -> None:
        self._turns.done()
        if not self.handler.if_stop:
            self._turns.wait()
