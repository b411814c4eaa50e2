"""The optimiser against torch's own class."""

import pytest
import torch

from fedetf.nn.optim import SGD, Adam, memorise, remember


@pytest.mark.parametrize("numbers", [{"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.9}, {}])
def test_it_is_torchs_sgd_to_the_bit(numbers: dict) -> None:
    torch.manual_seed(0)
    start = [torch.randn(4, 3), torch.randn(5)]
    mine, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    ours, reference = SGD(mine, lr=0.1, **numbers), torch.optim.SGD(theirs, lr=0.1, fused=True, **numbers)
    for step in range(4):
        for tensors, optimiser in ((mine, ours), (theirs, reference)):
            optimiser.zero_grad()
            loss = (tensors[0] ** 2).sum() * (step + 1)
            if step != 1:  # a tensor without a gradient stays, and so does its momentum
                loss = loss + tensors[1].sin().sum()
            loss.backward()
            optimiser.step()
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def walk(optimiser, tensors: list[torch.Tensor], steps: range) -> None:
    for step in steps:
        optimiser.zero_grad()
        loss = (tensors[0] ** 2).sum() * (step + 1)
        if step != 1:
            loss = loss + tensors[1].sin().sum()
        loss.backward()
        optimiser.step()


@pytest.mark.parametrize("decoupled", [False, True])
def test_it_is_torchs_adam_to_the_bit_also_in_two_pieces(decoupled: bool) -> None:
    torch.manual_seed(0)
    start = [torch.randn(4, 3), torch.randn(5)]
    mine, pieces, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(3))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    walk(Adam(mine, 0.1, 0.01, decoupled), mine, range(5))
    walk(kind(theirs, 0.1, weight_decay=0.01, fused=True), theirs, range(5))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    memory: dict[str, torch.Tensor] = {}
    names = {id(tensor): str(i) for i, tensor in enumerate(pieces)}
    for steps in (range(2), range(2, 5)):
        optimiser = Adam(pieces, 0.1, 0.01, decoupled)
        remember(optimiser, names, memory)
        walk(optimiser, pieces, steps)
        memorise(optimiser, names, memory)
    assert all(torch.equal(a, b) for a, b in zip(mine, pieces, strict=True))


def test_a_first_gradient_may_come_late() -> None:
    late, early = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimiser = SGD([late, early], lr=0.5, momentum=0.5)
    early.sum().backward()
    optimiser.step()
    optimiser.zero_grad()
    (early.sum() + late.sum()).backward()
    optimiser.step()
    assert late.tolist() == [0.5, 0.5]
    assert early.tolist() == [-0.25, -0.25]  # 1 − 0.5·1 − 0.5·(0.5 + 1)
