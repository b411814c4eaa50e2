import itertools

import pytest
import torch

from fedetf.core.soundness import defect
from fedetf.core.state import WeightedMean, clone, load_state, nbytes, save_state


def mean(*pairs: tuple[dict[str, torch.Tensor], float]) -> dict[str, torch.Tensor]:
    running = WeightedMean()
    for state, weight in pairs:
        running.add(state, weight)
    return running.result()


def test_mean_is_weighted_and_counters_are_taken() -> None:
    a = {"w": torch.tensor([0.0]), "running_var": torch.tensor([1.0]), "num_batches_tracked": torch.tensor(7)}
    b = {"w": torch.tensor([4.0]), "running_var": torch.tensor([5.0]), "num_batches_tracked": torch.tensor(3)}
    result = mean((a, 1), (b, 3))
    assert result["w"].item() == 3  # a plain mean gives 2
    assert result["running_var"].item() == 4
    assert result["num_batches_tracked"].item() == 7
    assert result["num_batches_tracked"].dtype == torch.int64


def test_mean_of_one_state_is_that_state_to_the_bit() -> None:
    state = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0)) / 3}
    assert torch.equal(mean((state, 7))["w"], state["w"])


def test_order_matters_in_no_visible_bit() -> None:
    g = torch.Generator().manual_seed(0)
    pairs = [({"w": torch.randn(50, generator=g)}, float(n)) for n in (3, 10, 41)]
    results = [mean(*order)["w"] for order in itertools.permutations(pairs)]
    for result in results:
        assert torch.equal(result, results[0])


def test_mean_leaves_its_inputs_alone_and_of_nothing_is_nothing() -> None:
    a = {"w": torch.ones(2), "n": torch.tensor(1)}
    before = clone(a)
    result = mean((a, 2), ({"w": torch.zeros(2), "n": torch.tensor(5)}, 2))
    result["w"].fill_(9)
    assert torch.equal(a["w"], before["w"])
    assert torch.equal(a["n"], before["n"])
    assert mean() == {}
    assert mean((a, 0)) == {}


def test_states_of_another_form_are_folded_in_by_name() -> None:
    a = {"w": torch.tensor([2.0, 4.0]), "n": torch.tensor(1)}
    b = {"n": torch.tensor(5), "w": torch.tensor([6.0, 0.0], dtype=torch.float64), "v": torch.tensor([8.0])}
    result = mean((a, 1), (b, 3), (a, 4))
    assert result["w"].tolist() == [3.5, 2.5]  # (1·2 + 3·6 + 4·2) / 8, (1·4 + 0 + 4·4) / 8
    assert result["v"].tolist() == [3.0]
    assert result["n"].item() == 5


def test_bytes() -> None:
    assert nbytes({"w": torch.zeros(10), "n": torch.tensor(1)}) == 48


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"w": torch.tensor([float("nan"), 0])}, "NaN"),
        ({"w": torch.tensor([float("inf"), 0])}, "NaN or infinite"),
        ({"w": torch.zeros(3)}, "shape"),
        ({"v": torch.zeros(2)}, "w missing"),
    ],
)
def test_defects_are_named(bad: dict[str, torch.Tensor], reason: str) -> None:
    good = {"w": torch.zeros(2)}
    assert defect(good, good) is None
    assert reason in str(defect(bad, good))


def test_save_and_load(tmp_path) -> None:
    state = {"a.b": torch.randn(3, 4).t(), "n": torch.tensor(3)}  # a transposed tensor is not contiguous
    save_state(state, tmp_path / "s.safetensors", {"round": 1})
    loaded = load_state(tmp_path / "s.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[k], state[k]) for k in state)
    assert [p.name for p in tmp_path.iterdir()] == ["s.safetensors"]
