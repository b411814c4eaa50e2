"""Compression of updates: numbers worked out by hand, what is lost is sent later, and bytes are those that travel."""

import numpy as np
import pytest
import torch
from safetensors.torch import save

import fedetf
from fedetf.core.state import State, nbytes
from fedetf.errors import RunError
from fedetf.transforms import Compression, Quantise, TopK

RECEIVED = {"w": torch.zeros(3)}


def sent(compression: Compression, update: list[float], residual: State) -> tuple[list[float], list[float]]:
    """What arrives of an update of zeros, and what waits."""
    coded = compression.encode({"w": torch.tensor(update)}, RECEIVED, ["w"], residual)
    return compression.decode(coded, RECEIVED, ["w"])["w"].tolist(), residual["w"].tolist()


def test_the_largest_first_and_the_rest_later() -> None:
    compression, residual = Compression([TopK(1 / 3)]), {"w": torch.zeros(3)}
    assert sent(compression, [3.0, -1.0, 2.0], residual) == ([3.0, 0.0, 0.0], [0.0, -1.0, 2.0])
    assert sent(compression, [0.0, -1.0, -3.0], residual) == ([0.0, -2.0, 0.0], [0.0, 0.0, -1.0])


def test_eight_bits_by_hand() -> None:
    coded = Quantise(8).encode({"w": torch.tensor([0.5, -1.0, 0.26])})
    assert (coded["w/codes"].int() - 127).tolist() == [64, -127, 33]
    assert Quantise(8).decode(coded, {"w": (3,)})["w"].tolist() == pytest.approx([0.503937, -1.0, 0.259843], rel=1e-5)


def test_one_bit_by_hand() -> None:
    assert sent(Compression([Quantise(1)]), [1.0, -2.0, 3.0], {"w": torch.zeros(3)}) == (
        [2.0, -2.0, 2.0],
        [-1.0, 0.0, 1.0],
    )


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_are_packed_and_unpacked(bits: int) -> None:
    """By NumPy's rounding, in the levels that so many bits have; no entry is off by more than half a step."""
    values = torch.randn(7, 11, generator=torch.Generator().manual_seed(bits))
    coded = Quantise(bits).encode({"w": values})
    assert nbytes(coded) == -(-77 * bits // 8) + 4
    again = Quantise(bits).decode(coded, {"w": (7, 11)})["w"]
    if bits == 1:
        wanted = np.abs(values.numpy()).mean() * np.where(values.numpy() >= 0, 1, -1)
    else:
        step = np.abs(values.numpy()).max() / (2 ** (bits - 1) - 1)
        wanted = np.rint(values.numpy() / step) * step
        assert float((again - values).abs().max()) <= step / 2 * 1.0001
    assert again.numpy() == pytest.approx(wanted, rel=1e-5)


def test_zeros_stay_zeros() -> None:
    for transform in (TopK(0.1), Quantise(1), Quantise(8)):
        assert sent(Compression([transform]), [0.0] * 3, {"w": torch.zeros(3)}) == ([0.0] * 3, [0.0] * 3)


@pytest.mark.parametrize("transforms", [[TopK(0.2)], [Quantise(2)], [TopK(0.3), Quantise(4)]])
def test_what_was_sent_and_what_waits_are_all_updates(transforms: list) -> None:
    stream = torch.Generator().manual_seed(1)
    received = {"a": torch.randn(5, 4, generator=stream), "b": torch.randn((), generator=stream)}
    residual = {name: torch.zeros_like(tensor) for name, tensor in received.items()}
    compression, total = Compression(transforms), {name: torch.zeros_like(t) for name, t in received.items()}
    arrived = {name: torch.zeros_like(t) for name, t in received.items()}
    for _ in range(6):
        update = {name: torch.randn(t.shape, generator=stream) for name, t in received.items()}
        coded = compression.encode({n: received[n] + update[n] for n in received}, received, list(received), residual)
        for name, model in compression.decode(coded, received, list(received)).items():
            arrived[name] += model - received[name]
            total[name] += update[name]
    for name in received:
        torch.testing.assert_close(arrived[name] + residual[name], total[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("share", "places"), [(0.01, 4 * 10), (0.2, 125)])
def test_places_as_numbers_or_as_bits(share: float, places: int) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    coded = TopK(share).encode({"w": values})
    assert nbytes(coded) == 4 * round(share * 1000) + places
    again = TopK(share).decode(coded, {"w": (1000,)})["w"]
    largest = values.abs().topk(round(share * 1000)).indices
    assert set(again.nonzero().flatten().tolist()) == set(largest.tolist())
    assert torch.equal(again[largest], values[largest])


def test_bytes_are_those_of_the_message() -> None:
    compression = Compression([TopK(0.1), Quantise(8)])
    received = {"w": torch.zeros(50, 20), "bn.running_var": torch.ones(3)}
    model = {"w": torch.randn(50, 20), "bn.running_var": torch.ones(3)}
    coded = compression.encode(model, received, ["w"], {"w": torch.zeros(50, 20)})
    message = save(coded)
    header = int.from_bytes(message[:8], "little")
    assert nbytes(coded) == len(message) - 8 - header == 100 + 4 + 125 + 3 * 4


@pytest.mark.parametrize(
    "spoil",
    [
        lambda coded: coded.pop("coded/w/places"),
        lambda coded: coded.update({"coded/w/places": torch.tensor([5], dtype=torch.int32)}),
        lambda coded: coded.update({"coded/w/places": torch.tensor([0.5])}),
        lambda coded: coded.update({"coded/w/values": torch.zeros(2)}),
        lambda coded: coded.update({"coded/w/places": torch.tensor([-1], dtype=torch.int32)}),
    ],
)
def test_what_cannot_be_decoded_is_one_line(spoil) -> None:
    compression = Compression([TopK(0.01)])
    received = {"w": torch.zeros(1)}
    coded = compression.encode({"w": torch.ones(1)}, received, ["w"], {"w": torch.zeros(1)})
    spoil(coded)
    with pytest.raises(RunError, match=r"cannot be decoded|places|values"):
        compression.decode(coded, received, ["w"])


def test_a_run_sends_less_and_says_so() -> None:
    options = {"clients": 3, "rounds": 2, "epochs": 1, "model": "mlp", "method": "fedetf"}
    settings = {"data.limit": 150, "personal.enabled": False, "engine.name": "serial"}
    whole = fedetf.run(settings=settings, **options).summary["bytes_up"]
    tenth = fedetf.run(settings={**settings, "update.top_k": 0.01}, **options)
    small = tenth.summary["bytes_up"]
    assert small < 0.03 * whole
    assert tenth.general is not None
