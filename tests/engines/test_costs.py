"""What methods cost: by the formulas of their papers, and as it is written down for lists."""

import json
from dataclasses import asdict

import pytest
import torch

from fedetf.api import prepare
from fedetf.config import resolve
from fedetf.engines.costs import CLASSES, costs_of
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.files import packaged
from fedetf.methods import METHODS

C, D = CLASSES, 64  # a ResNet-20 has 64 features
HEAD = 4 * C * (D + 1)
BATCHNORM = 16 * 784 + 8 * 21  # four numbers a channel and a counter a layer: 784 channels in 21 layers


@pytest.mark.parametrize(
    ("method", "down", "up", "end"),
    [
        ("fedavg", 0, 0, 0),
        ("fedbabu", -HEAD, -HEAD, 0),
        ("fedper", -HEAD, -HEAD, 0),
        ("fedbn", -BATCHNORM, -BATCHNORM, 0),
        ("fedetf", 4, 4, 0),  # a projection as large as the head, and β
        ("fedpvr", HEAD, 8, 0),
        ("fednova", 0, 8, 0),
        ("spherefed", -HEAD, -HEAD, 8 * (D * D + C * D) + 8 * C),  # class sums and Σ r rᵀ; which classes these are
        ("ccvr", 0, 0, C * (8 + 8 + 8 * D + 8 * D * D)),
        ("apfl", 0, 0, 0),
    ],
)
def test_bytes_by_the_formulas(method: str, down: int, up: int, end: int) -> None:
    costs = costs_of(METHODS[method]())
    assert (costs.extra_bytes_down, costs.extra_bytes_up, costs.extra_bytes_end) == (down, up, end)


def test_what_clients_keep() -> None:
    kept = {name: costs_of(METHODS[name]()) for name in ("fedper", "fedbn", "apfl", "local", "pooled")}
    assert (kept["fedper"].client_state, kept["fedper"].client_state_bytes) == (["head"], HEAD)
    assert kept["fedbn"].client_state_bytes == BATCHNORM
    whole = kept["local"].client_state_bytes
    assert kept["local"].extra_bytes_up == kept["local"].extra_bytes_down == -whole
    assert (kept["apfl"].client_state, kept["apfl"].client_state_bytes) == (["v", "alpha"], whole + 4)
    assert (kept["pooled"].client_state, kept["pooled"].extra_bytes_up) == ([], -whole)


def test_what_is_written_for_lists_is_true() -> None:
    """If this fails: python tools/method_costs.py."""
    written = json.loads(packaged("methods", "costs.json"))
    assert written == {name: asdict(costs_of(method())) for name, method in METHODS.items()}


@pytest.mark.parametrize("method", METHODS)
def test_extra_passes_are_those_that_the_encoder_makes(method: str) -> None:
    """In a client's second round, of one epoch: images that went through the encoder and were not trained on."""
    chosen = {"method.name": method, "model.name": "mlp", "data.clients": 2, "data.limit": 60, "train.epochs": 1}
    job = prepare(resolve(None, chosen))
    received, worker = Federation(job, [])._received(), Worker(job, torch.device("cpu"))
    pooled = {"pooled": len(job.partition.train[0])} if job.method.pools else {}
    private = worker.train(0, 1, received, {}, **pooled).private
    seen: list[int] = []
    worker.net.encoder.register_forward_hook(lambda _, inputs, out: seen.append(len(out)))
    trained = worker.train(0, 2, received, private, **pooled).upload
    extra = max(0, sum(seen) - trained.images) / trained.samples
    backward = {"apfl": 2}.get(method, 0)  # the mixture trains too, on the same images
    assert extra + backward == METHODS[method].extra_passes
