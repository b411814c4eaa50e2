"""One real client with chosen class counts and inputs, whose net passes features on as they are: losses by hand."""

import numpy as np
import torch
from torch import Tensor, nn

import fedetf
from fedetf.config import resolve
from fedetf.core.client import Batch, Client
from fedetf.data import Dataset, Samples
from fedetf.data.partition import split_parts
from fedetf.engines.job import Job
from fedetf.engines.worker import Worker
from fedetf.methods import Method


def identity(width: int) -> nn.Linear:
    """A linear layer that changes nothing, and can be trained."""
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def job_of(method: Method, counts: list[list[int]], width: int, inputs: Tensor | None = None, **settings) -> Job:
    """Clients with so many samples of each class; inputs are vectors of ``width`` zeros, unless given."""
    labels = [c for client in counts for c, n in enumerate(client) for _ in range(n)]
    y = torch.tensor(labels)
    x = torch.zeros(len(y), width) if inputs is None else inputs
    ends = np.cumsum([sum(client) for client in counts])
    parts = np.split(np.arange(len(y)), ends[:-1])
    dataset = Dataset(Samples(x, y), Samples(x, y), [str(c) for c in range(len(counts[0]))], share=True)
    partition = split_parts(parts, y.numpy(), dataset.classes, 0.0, 0)
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0, "train.lr_decay": 1.0, "data.min_size": 1}
    return Job(resolve(None, {**plain, **settings}), method, dataset, partition, identity(width))


def client_of(method: Method, counts: list[int], width: int | None = None, inputs: Tensor | None = None) -> Client:
    """A client whose linear head, if it has one, is the identity too."""
    job = job_of(method, [counts], width or len(counts), inputs)
    worker = Worker(job, torch.device("cpu"))
    client = worker.client(0, 1, worker.net.state_dict(), {}, epochs=1, lr=0.1)
    if isinstance(client.net.head, nn.Linear):
        nn.init.eye_(client.net.head.weight)
        nn.init.zeros_(client.net.head.bias)
    return client


def loss_of(
    method: Method, client: Client, h: list[list[float]], y: list[int], rows: list[int] | None = None
) -> Tensor:
    """The method's loss of a batch with these features and labels."""
    return method.loss(client, batch_of(torch.tensor(h), y, rows))


def batch_of(h: Tensor, y: list[int], rows: list[int] | None = None) -> Batch:
    return Batch(h, torch.tensor(y), torch.tensor(rows or range(len(y))), lambda: h)


SMALL = {"clients": 3, "rounds": 2, "epochs": 2, "alpha": 0.3, "model": "mlp", "engine": "serial"}
DIGITS = {"data.limit": 90, "data.test_limit": 20, "personal.epochs": 1, "train.batch_size": 8}


def small_run(method: str, options: dict | None = None, **numbers) -> fedetf.Result:
    """A run on few digits; ``numbers`` are the method's own."""
    settings = {**DIGITS, **{f"method.{name}": value for name, value in numbers.items()}}
    settings |= {name: value for name, value in (options or {}).items() if "." in name}
    flags = {**SMALL, **{name: value for name, value in (options or {}).items() if "." not in name}}
    return fedetf.run(method=method, settings=settings, **flags)


def same_bits(a: fedetf.Result, b: fedetf.Result) -> bool:
    """Whether two runs end in the same global model, and in the same accuracy of every client's own."""
    first, second = a.outcome.model, b.outcome.model
    alike = first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    return alike and a.personal_per_client == b.personal_per_client
