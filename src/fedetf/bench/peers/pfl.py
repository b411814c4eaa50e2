"""pfl-research: one process as it comes; tuned, one for each core, with users dealt out by their size."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedetf.bench.peers.work import MOMENTUM, WEIGHT_DECAY, Turns, Work
from fedetf.engines.forkserver import cores


def play(turns: Turns, work: Work, rounds: int) -> None:
    """Rounds of all clients."""
    if work.tuned:
        _start_others()
    # It joins the other processes as it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    clients = range(len(work.parts))
    users = FederatedDataset(
        lambda user: Dataset(work.parts[user], user_id=str(user)),
        get_user_sampler("minimize_reuse", list(clients)),
        user_id_to_weight={client: len(work.parts[client][1]) for client in clients} if work.tuned else None,
    )
    net = _WithLoss(work.net)
    model = PyTorchModel(
        net,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, MOMENTUM, weight_decay=WEIGHT_DECAY),
        torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            rounds, evaluation_frequency=rounds + 1, train_cohort_size=len(clients), val_cohort_size=None
        ),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=work.batch_size, local_num_epochs=1, local_learning_rate=work.lr),
        callbacks=_callbacks(turns, rounds),
    )


class _WithLoss(nn.Module):
    """A net as pfl wants it."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Its first iteration wants some; it is the warm-up."""
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted(float(cross_entropy(self.net(x), y)), 1)}


def _callbacks(turns: Turns, rounds: int) -> Sequence[Any]:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Calls(TrainingProcessCallback):  # type: ignore[misc]  # without its package, it is of no type
        """All processes begin a round together, when the first of them is called."""

        def on_train_begin(self, *, model: Any) -> Any:
            self._begin()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if _rank() == 0:
                turns.done()
            if central_iteration + 1 < rounds:
                self._begin()
            return False, Metrics()

        def _begin(self) -> None:
            if _rank() == 0:
                turns.wait()
            if torch.distributed.is_initialized():
                torch.distributed.barrier()

    return [Calls()]


def _start_others() -> None:
    """Start the same program once more for each further core, as torchrun would."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(cores())}
    os.environ |= {"TORCHELASTIC_RUN_ID": "bench", "RANK": "0", "LOCAL_RANK": "0"}
    for rank in map(str, range(1, cores())):
        environment = {**os.environ, "RANK": rank, "LOCAL_RANK": rank}
        subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=environment, stdin=subprocess.DEVNULL)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
