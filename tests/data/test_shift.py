"""What looks different at each client, wrong labels and long tails, against other libraries and by hand."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.ndimage import gaussian_filter

import fedetf
from fedetf.data import Dataset, Samples, deal_out, load_dataset
from fedetf.data.frames import from_pandas
from fedetf.data.load import from_frames
from fedetf.data.partition import as_seen
from fedetf.data.shift import Shift, shifted
from fedetf.data.tail import long_tail
from fedetf.errors import UserError
from fedetf.settings import DataSettings

PICTURES = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
ALL = [np.arange(6)]


def one_client(kind: str, *amount: float) -> torch.Tensor:
    return shifted(PICTURES, Shift(kind, [list(amount)]), ALL, seed=3)


def test_a_quarter_turn_is_numpys() -> None:
    turned = np.rot90(PICTURES.numpy(), axes=(2, 3))  # counter-clockwise
    assert np.array_equal(one_client("rotate", 90.0).numpy(), turned)


def test_a_turn_keeps_the_shape_of_what_is_not_square() -> None:
    line = torch.zeros(1, 1, 9, 21, dtype=torch.uint8)
    line[0, 0, 4, 8:13] = 255  # a horizontal line about the middle becomes a vertical one of the same length
    turned = shifted(line, Shift("rotate", [[90.0]]), [np.arange(1)], 0)
    assert torch.equal(turned[0, 0].nonzero(), torch.tensor([[y, 10] for y in range(2, 7)]))


def test_the_blur_is_scipys() -> None:
    sigma = 1.4
    smooth = gaussian_filter(PICTURES.numpy().astype(float), (0, 0, sigma, sigma), mode="nearest", truncate=3.0)
    assert np.abs(one_client("blur", sigma).numpy() - smooth).max() < 0.51  # rounded to whole numbers


def test_colours_scale_channels_and_stay_in_range() -> None:
    seen = one_client("colour", 0.5, 1.0, 2.0).float()
    x = PICTURES.float()
    assert torch.equal(seen[:, 0], (x[:, 0] / 2).round())
    assert torch.equal(seen[:, 1], x[:, 1])
    assert torch.equal(seen[:, 2], (2 * x[:, 2]).clamp(max=255))


def test_twice_as_large_is_the_middle_of_the_picture() -> None:
    flat = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    flat[:, :, 2:6, 2:6] = 200
    seen = shifted(flat, Shift("scale", [[2.0]]), [np.arange(1)], 0)
    assert (seen[:, :, 1:7, 1:7] == 200).all()


def test_noise_has_the_spread_it_says() -> None:
    numbers = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.0, 10.0])
    noise = shifted(numbers, Shift("noise", [[0.3]]), [np.arange(20_000)], 5) - numbers
    assert noise.std(dim=0).tolist() == pytest.approx((0.3 * numbers.std(dim=0)).tolist(), rel=0.02)


def test_each_client_has_its_own_and_nobody_elses_changes() -> None:
    parts = [np.array([0, 2]), np.array([1]), np.array([], dtype=np.int64)]
    seen = shifted(PICTURES, Shift("rotate", [[90.0], [0.0], [45.0]]), parts, 0)
    turned = one_client("rotate", 90.0)
    assert torch.equal(seen[[0, 2]], turned[[0, 2]])
    assert torch.equal(seen[[1, 3, 4, 5]], PICTURES[[1, 3, 4, 5]])


@pytest.mark.parametrize("kind", ["rotate", "noise", "blur", "colour", "scale"])
def test_it_is_a_part_of_the_partition(kind: str) -> None:
    settings = DataSettings(clients=4, shift=kind, limit=200)
    dataset = load_dataset(settings, 7)
    plain = deal_out(dataset, DataSettings(clients=4, limit=200), 7)
    partition = deal_out(dataset, settings, 7)
    seen = as_seen(dataset, partition, 7)
    assert all(np.array_equal(a, b) for a, b in zip(plain.train, partition.train, strict=True))
    written = json.loads(partition.to_json())["shift"]
    assert written["kind"] == kind
    assert len({tuple(amount) for amount in written["amounts"]}) == 4
    assert not torch.equal(seen.train.x, dataset.train.x)
    assert torch.equal(seen.test.x, dataset.test.x)
    assert torch.equal(as_seen(dataset, deal_out(dataset, settings, 7), 7).train.x, seen.train.x)


@pytest.mark.parametrize("kind", ["noise", "scale"])
def test_a_table_keeps_its_categories_and_what_is_missing(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.normal(50, 9, 80), "pain": rng.choice(["mild", "sharp"], 80), "label": [0, 1] * 40}
    )
    table.loc[::4, "age"] = np.nan
    settings = DataSettings(clients=2, partition="iid", shift=kind, shift_strength=1.0)
    dataset = from_frames({"train": from_pandas(table, "table")}, None, settings, 1)
    partition = deal_out(dataset, settings, 1)
    before, after = dataset.train.x, as_seen(dataset, partition, 1).train.x
    assert torch.equal(before[:, 1], after[:, 1])
    assert torch.equal(before[:, 0].isnan(), after[:, 0].isnan())
    ages = before[:, 0][~before[:, 0].isnan()].numpy()
    assert 0 < len(ages) < len(before)
    for k in range(2):
        mine = partition.everything(k)
        old, new = (x[mine, 0][~x[mine, 0].isnan()].numpy() for x in (before, after))
        (amount,) = partition.shift.amounts[k]
        if kind == "scale":
            assert new == pytest.approx(old * amount)
        else:
            assert (new - old).std() == pytest.approx(amount * ages.std(ddof=1), rel=0.35)


def test_texts_are_not_shifted() -> None:
    texts = pd.DataFrame({"text": ["one", "two"] * 20, "label": [0, 1] * 20})
    with pytest.raises(UserError, match="not for texts"):
        fedetf.run(data=texts, clients=2, rounds=1, settings={"data.shift": "noise"})


def test_what_is_for_images_is_refused_for_numbers() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    dataset = Dataset(Samples(x, y), Samples(x, y), ["a", "b"])
    with pytest.raises(UserError, match="for images"):
        deal_out(dataset, DataSettings(clients=2, shift="rotate"), 0)
    settings = DataSettings(clients=2, shift="scale")
    partition = deal_out(dataset, settings, 0)
    assert partition.shift is not None
    (factor,), rows = partition.shift.amounts[0], torch.from_numpy(partition.everything(0))
    assert torch.allclose(as_seen(dataset, partition, 0).train.x[rows], factor * x[rows])


def test_wrong_labels_are_where_and_as_many_as_they_should_be() -> None:
    settings = DataSettings(clients=10, partition="iid", label_noise=0.4, noisy_clients=0.3, validation_fraction=0.2)
    dataset = load_dataset(settings, 7)
    partition = deal_out(dataset, settings, 7)
    seen, right = as_seen(dataset, partition, 7).train.y.numpy(), dataset.train.y.numpy()
    assert len(partition.wrong) == 3
    for k in range(10):
        trained_on = np.concatenate([partition.train[k], partition.validation[k]])
        wrong = (seen[trained_on] != right[trained_on]).sum()
        assert wrong == (round(0.4 * len(trained_on)) if k in partition.wrong else 0)
        assert np.array_equal(seen[partition.test[k]], right[partition.test[k]])
        assert partition.counts[k].tolist() == np.bincount(seen[partition.train[k]], minlength=10).tolist()
    more = deal_out(dataset, settings.model_copy(update={"noisy_clients": 0.6}), 7)
    assert set(partition.wrong) < set(more.wrong)  # a larger share adds clients and replaces none


def test_a_long_tail_has_the_published_counts() -> None:
    """Long-tailed CIFAR-10 with imbalance 100 (Cui et al.; the counts of its public lists)."""
    y = torch.arange(10).repeat_interleave(5000)
    tail = long_tail(Samples(torch.zeros(50_000, 1), y), 10, 100.0, seed=1)
    counts = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert torch.bincount(tail.y).tolist() == counts


def test_a_run_with_all_of_it_is_the_same_on_processes_and_when_it_goes_on(tmp_path: Path) -> None:
    given = {"data.shift": "rotate", "data.label_noise": 0.2, "data.imbalance": 5.0, "measure.tensorboard": False}
    short = {"method": "fedavg", "clients": 3, "rounds": 2, "epochs": 1, "seed": 5}
    one = fedetf.run(**short, settings=given, out=tmp_path / "one")
    two = fedetf.run(**short, settings=given, out=tmp_path / "two", engine="processes", workers=2)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
    assert one.personal_per_client == two.personal_per_client
    (tmp_path / "one/result.json").unlink()
    assert fedetf.resume(tmp_path / "one").general == one.general
