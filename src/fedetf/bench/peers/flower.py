"""Flower's simulation on Ray: as many clients side by side as there are cores, one thread each, its default."""

import json
from functools import cache
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedetf.bench.peers.work import Turns, Work
from fedetf.core.state import WeightedMean

known = cache(Work.make)  # a Ray actor makes it once


def play(turns: Turns, work: Work, rounds: int) -> None:
    """Rounds of all clients."""
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        state: dict[str, Tensor] = work.net.state_dict()
        for _round in range(rounds):
            turns.wait()
            mean = WeightedMean()
            for reply in grid.send_and_receive(_orders(grid, state, work)):
                samples, trained = _read(reply)
                mean.add(trained, samples)
            state = mean.result()
            turns.done()

    client.train()(train)
    run_simulation(server, client, len(work.parts), backend_config={"client_resources": {"num_cpus": 1}})


def _orders(grid: Grid, state: dict[str, Tensor], work: Work) -> list[Message]:
    """One message for each client."""
    nodes = sorted(grid.get_node_ids())
    orders = [(client, work.scale, work.tuned) for client in range(len(work.parts))]
    return [
        Message(_records(order, state), dst_node_id=node, message_type="train")
        for node, order in zip(nodes, orders, strict=True)
    ]


def train(message: Message, _: Context) -> Message:
    """A client's epoch."""
    (client, *which), received = _read(message)
    work = known(*which)
    work.net.load_state_dict(received)
    work.net.train()
    optimiser = work.optimiser(work.net)
    for x, y in work.batches(client):
        optimiser.zero_grad()
        cross_entropy(work.net(x), y).backward()
        optimiser.step()
    return Message(_records(len(work.parts[client][1]), work.net.state_dict()), reply_to=message)


def _records(about: object, state: dict[str, Tensor]) -> RecordDict:
    model = ArrayRecord({name: Array(tensor.detach().contiguous().numpy()) for name, tensor in state.items()})
    return RecordDict({"model": model, "about": ConfigRecord({"json": json.dumps(about)})})


def _read(message: Message) -> tuple[Any, dict[str, Tensor]]:
    records = message.content
    return json.loads(str(records.config_records["about"]["json"])), records.array_records[
        "model"
    ].to_torch_state_dict()
