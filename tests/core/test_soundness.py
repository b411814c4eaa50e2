"""What is refused: updates that no training can have made, and what a server made of others; on every engine."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedetf
from fedetf import RunError
from fedetf.core.client import Client
from fedetf.core.soundness import too_large, unsound
from fedetf.core.state import State, load_checked
from fedetf.errors import LONGEST, printable
from fedetf.methods import METHODS, Server, Upload
from fedetf.methods.authors import AUTHORS

MODEL = {
    "w": torch.tensor([3.0, 4.0]),
    "bn.running_var": torch.zeros(2),
    "bn.num_batches_tracked": torch.tensor(7),
    "index": torch.tensor([-1, 2]),
    "mask": torch.tensor([True, False]),
}  # of length 5


def problem(changes: dict[str, Tensor], images: int = 100, max_ratio: float = 1e3) -> str:
    return str(unsound({**MODEL, **changes}, MODEL, images, max_ratio))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "None"),
        ({"w": torch.tensor([3.0, 4999.0])}, "None"),  # 4995 is 999 times 5
        ({"w": torch.tensor([3.0, 5009.0])}, "its update is 1e+03 times as long as the model that it received"),
        ({"w": torch.tensor([3e38, 3e38])}, "its update is inf times as long"),
        ({"w": torch.tensor([math.nan, 0])}, "w holds NaN"),
        ({"bn.running_var": torch.tensor([4990.0**2, 0.0])}, "None"),  # on the scale of standard deviations
        ({"bn.running_var": torch.tensor([5010.0**2, 0.0])}, "times as long"),
        ({"bn.running_var": torch.tensor([1.0, -1e-9])}, "bn.running_var holds negative variances"),
        ({"bn.num_batches_tracked": torch.tensor(107)}, "None"),
        ({"bn.num_batches_tracked": torch.tensor(108)}, "counts what training on 100 images cannot have counted"),
        ({"bn.num_batches_tracked": torch.tensor(2**62)}, "bn.num_batches_tracked counts"),
        ({"bn.num_batches_tracked": torch.tensor(-1)}, "bn.num_batches_tracked counts"),
        ({"index": torch.tensor([-2, 2])}, "index counts"),  # what was negative may stay, but not fall
        ({"mask": torch.tensor([False, True])}, "None"),
        ({"means": torch.tensor([2.4e7])}, "None"),  # statistics may be squares: (1000 · 5)²
        ({"means": torch.tensor([2.6e7])}, "its statistics have the length 2.6e+07, update.max_ratio allows 2.5e+07"),
        ({"means": torch.tensor([3e38])}, "its statistics have the length"),
    ],
)
def test_influence_is_bounded(changes: dict[str, Tensor], why: str) -> None:
    assert why in problem(changes)


def test_a_model_of_zeros_and_no_model_at_all_count_as_of_length_one() -> None:
    zero = {"w": torch.zeros(2)}
    assert unsound({"w": torch.tensor([999.0, 0.0])}, zero, 1, 1e3) is None
    assert "times as long" in str(unsound({"w": torch.tensor([1001.0, 0.0])}, zero, 1, 1e3))
    assert unsound({"prototypes": torch.tensor([9e5])}, {}, 1, 1e3) is None
    assert "length 1.1e+06" in str(unsound({"prototypes": torch.tensor([1.1e6])}, {}, 1, 1e3))


def test_no_bound_overflows() -> None:
    vast = {"w": torch.tensor([3e38, 3e38])}
    assert unsound(vast, vast, 1, 1e300) is None
    assert "times as long" in str(unsound({"w": -vast["w"]}, vast, 1, 1e300))
    assert too_large({"means": torch.tensor([3e38])}, vast, 1e300) is None
    assert too_large({"means": torch.tensor([3e38, 3e38])}, vast, 1e300) is not None  # its square is no number any more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "fidelity"), [*((name, "paper") for name in METHODS), *((name, "authors") for name in AUTHORS)]
)
def test_no_sound_training_is_refused(method: str, fidelity: str) -> None:
    result = fedetf.run(
        method=method,
        model="cnn",
        clients=2,
        rounds=2,
        settings={
            "fidelity": fidelity,
            "data.limit": 40,
            "data.test_limit": 20,
            "data.min_size": 1,  # of one image BatchNorm counts no batch
            "train.batch_size": 2,  # many batches: counters run as fast as they can
            "train.lr": 0.01,
            "update.max_ratio": 10.0,
            "personal.enabled": False,
        },
    )
    assert result.summary["refused_updates"] == 0


# --- in a run ---------------------------------------------------------------------------------------------------------


def run(method: type[fedetf.Method], out: Path, **settings: object) -> fedetf.Result:
    quick = {"data.limit": 60, "data.test_limit": 20, "personal.enabled": False, "measure.tensorboard": False}
    return fedetf.run(
        method=method, model="mlp", clients=3, rounds=3, out=out, engine="serial", settings={**quick, **settings}
    )


class Shouting(fedetf.Method):
    """One client sends numbers that float32 can just hold, under a name that would clear the terminal."""

    def upload(self, client: Client) -> State:
        state = super().upload(client)
        return {**state, "\x1b[2J\nround": torch.full((3,), 3e38)} if client.id == 1 else state


class Overflowing(fedetf.Method):
    """The server's own arithmetic leaves the numbers in the second round."""

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        super().aggregate(server, uploads)
        if server.round == 2:
            server.state["head.bias"][3] = math.inf


class OverflowingInside(fedetf.Method):
    """Likewise, in what the server keeps to itself."""

    def server_state(self, net: torch.nn.Module) -> State:
        return {"momentum": torch.zeros(2)}

    def aggregate(self, server: Server, uploads: Iterable[Upload]) -> None:
        super().aggregate(server, uploads)
        if server.round == 2:
            server.own["momentum"] /= 0


class NoFinish(fedetf.Method):
    """The last change of the model spoils it."""

    finishes = True

    def finish(self, server: Server, summaries: Iterable[State]) -> None:
        server.state["head.bias"] /= 0


def test_a_client_that_sends_huge_numbers_is_left_out_and_its_names_are_escaped(tmp_path: Path) -> None:
    result = run(Shouting, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert all("its statistics have the length" in line["refused"]["1"] for line in lines)
    assert all(torch.isfinite(tensor).all() for tensor in result.outcome.model.values())


def test_names_in_reasons_are_one_printable_line(tmp_path: Path) -> None:
    class Nameless(Shouting):
        def upload(self, client: Client) -> State:
            return {name: tensor * math.inf for name, tensor in super().upload(client).items()}

    with pytest.raises(RunError, match=r"round 1: every update was refused") as failed:
        run(Nameless, tmp_path / "run")
    assert str(failed.value).isprintable()

    class Quiet(fedetf.Method):
        def upload(self, client: Client) -> State:
            extra = {"\x1b[2J\u202egpj.exe\n": torch.tensor(math.nan)} if client.id == 1 else {}
            return {**super().upload(client), **extra}

    outcome = run(Quiet, tmp_path / "quiet").outcome
    assert outcome.rounds[0].refused == {1: "\\x1b[2J\\u202egpj.exe\\n holds NaN or infinite values"}


@pytest.mark.parametrize(
    ("method", "when", "kept"),
    [
        (Overflowing, "round 2", "round-00001"),
        (OverflowingInside, "round 2", "round-00001"),
        (NoFinish, "after the last round", "round-00003"),
    ],
)
def test_a_model_that_is_of_no_use_ends_the_run_before_it_is_written(
    method: type[fedetf.Method], when: str, kept: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=f"{when}: the server's new model is unusable: .* holds NaN or infinite"):
        run(method, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert newest.stem == kept
    assert all(torch.isfinite(tensor).all() for tensor in load_checked(newest)[1].values())
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_printable_text_is_one_line_of_bounded_length() -> None:
    assert printable("head.weight: déjà vu") == "head.weight: déjà vu"
    assert printable("a\r\n\t\x00\x9b\ud800") == "a\\r\\n\\t\\x00\\x9b\\ud800"
    assert len(printable("\x00" * 10**6)) <= 10 * LONGEST
