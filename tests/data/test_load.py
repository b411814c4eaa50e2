"""Where data comes from, and one clear line for everything that can be wrong with it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import images, png
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedetf import UserError
from fedetf.data import load_dataset
from fedetf.data.split import stratified
from fedetf.settings import DataSettings

Write = Callable[..., Path]


def load(name: str | Path, seed: int = 7, **settings: object):
    return load_dataset(DataSettings(name=str(name), **settings), seed)


# --- digits ---------------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_and_the_test_set_is_balanced() -> None:
    data = load("digits")
    assert data.shape == (1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    assert len(data.train) + len(data.test) == 1797
    assert len(data.test) == 360
    counts = torch.bincount(data.test.y)
    assert counts.max() - counts.min() <= 2
    bunch = load_digits()
    seen = sorted((data.train.x.double().sum() + data.test.x.double().sum()).reshape(1).tolist())
    assert seen == [np.round(bunch.images * 255 / 16).sum()]
    grey = (bunch.images * 255 / 16).round().astype(np.uint8)
    split = train_test_split(range(1797), test_size=0.2, stratify=bunch.target, random_state=0)
    for part, places in zip((data.train, data.test), split, strict=True):
        assert np.array_equal(part.x[:, 0], grey[places])
        assert np.array_equal(part.y, bunch.target[places])
    assert torch.equal(load("digits", seed=8).test.x, data.test.x)  # whatever the seed


@pytest.mark.parametrize("seed", range(20))
def test_the_split_is_scikit_learns(seed: int) -> None:
    """Few classes and many, even and uneven, with numbers that are no places; ties are broken alike."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(rng.permutation(40)[: seed + 1], rng.integers(2, 30, seed + 1)))
    test = int(rng.integers(seed + 1, len(labels) - seed))
    wanted = train_test_split(np.arange(len(labels)), test_size=test, stratify=labels, random_state=seed)
    assert [part.tolist() for part in stratified(labels, test, seed)] == [part.tolist() for part in wanted]


def test_limits_take_equally_from_each_class_and_are_seeded() -> None:
    data = load("digits", limit=100, test_limit=50)
    assert torch.bincount(data.train.y).tolist() == [10] * 10
    assert torch.bincount(data.test.y).tolist() == [5] * 10
    assert torch.equal(load("digits", limit=100).train.x, data.train.x)
    assert not torch.equal(load("digits", limit=100, seed=8).train.x, data.train.x)
    assert len(load("digits", limit=10**6).train) == 1437


def test_size_resizes() -> None:
    assert load("digits", size=16).shape == (1, 16, 16)


# --- Parquet --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(write_parquet: Write) -> Path:
    """A folder of Parquet files with two training shards."""
    write_parquet("set/train-00000-of-00002.parquet", images(20), [i % 3 for i in range(20)])
    write_parquet("set/train-00001-of-00002.parquet", images(10, seed=1), [i % 3 for i in range(10)])
    return write_parquet("set/test.parquet", images(9, seed=2), [i % 3 for i in range(9)]).parent


def test_folder_of_parquet_files(folder: Path) -> None:
    data = load(folder)
    assert data.classes == ["0", "1", "2"]
    wanted = np.stack(images(20) + images(10, seed=1))
    assert np.array_equal(data.train.x[:, 0].numpy(), wanted)
    assert data.train.y.tolist() == [i % 3 for i in range(20)] + [i % 3 for i in range(10)]
    assert len(data.test) == 9


def test_name_is_found_under_fedetf_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDETF_DATA", str(folder.parent))
    assert len(load("set").train) == 30
    folder.rename(folder.parent / "cifar10")
    assert len(load("cifar10").train) == 30  # also for a name that the hub has


def test_fedetf_data_must_be_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDETF_DATA", "no/such/folder")
    with pytest.raises(UserError, match="FEDETF_DATA names 'no/such/folder', which is not a folder"):
        load("cifar10")


def test_columns_are_found_or_given(write_parquet: Write) -> None:
    write_parquet("a/train.parquet", images(6), [0, 1] * 3, ("pixels", "fine_label"))
    folder = write_parquet("a/test.parquet", images(6), [0, 1] * 3, ("pixels", "fine_label")).parent
    assert len(load(folder).train) == 6
    write_parquet("b/train.parquet", images(6), [0, 1] * 3, ("pixels", "what"))
    folder = write_parquet("b/test.parquet", images(6), [0, 1] * 3, ("pixels", "what")).parent
    with pytest.raises(UserError, match=r"no clear column of labels among: pixels, what.*data.label_column"):
        load(folder)
    assert len(load(folder, label_column="what").train) == 6
    with pytest.raises(UserError, match="has no label column 'nope'; its columns are: pixels, what"):
        load(folder, label_column="nope")


def test_string_labels_become_classes_in_order(write_parquet: Write) -> None:
    write_parquet("s/train.parquet", images(4), ["dog", "cat", "dog", "ant"])
    folder = write_parquet("s/test.parquet", images(2), ["cat", "ant"]).parent
    data = load(folder)
    assert data.classes == ["ant", "cat", "dog"]
    assert data.train.y.tolist() == [2, 1, 2, 0]
    assert data.test.y.tolist() == [1, 0]


def test_without_a_test_split_a_fifth_is_held_out(write_parquet: Write) -> None:
    folder = write_parquet("t/train.parquet", images(50), [i % 5 for i in range(50)]).parent
    data = load(folder)
    assert torch.bincount(data.test.y).tolist() == [2] * 5
    assert len(data.train) == 40


def test_grey_and_colour_mix_becomes_colour(write_parquet: Write) -> None:
    mixed = images(3) + images(3, (8, 8, 3))
    write_parquet("m/train.parquet", mixed, [0, 1] * 3)
    folder = write_parquet("m/test.parquet", mixed, [0, 1] * 3).parent
    x = load(folder).train.x
    assert x.shape == (6, 3, 8, 8)
    assert torch.equal(x[0, 0], x[0, 2])
    assert np.array_equal(x[3].permute(1, 2, 0).numpy(), mixed[3])


def test_images_lie_in_memory_as_convolutions_like_them(write_parquet: Write) -> None:
    folder = write_parquet("c/train.parquet", images(10, (8, 8, 3)), [0, 1] * 5).parent
    assert load(folder).train.x.is_contiguous(memory_format=torch.channels_last)


# --- image folders --------------------------------------------------------------------------------------------------


def image_folder(root: Path, splits: tuple[str, ...]) -> Path:
    for split in splits:
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i, pixels in enumerate(images(10, (8, 8, 3), seed=len(label))):
                (root / split / label / f"{i}.png").write_bytes(png(pixels))
    return root


def test_files_outside_the_folders_of_classes_are_counted(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pets", ("train", "test"))
    (folder / "train" / "stray.png").write_bytes(b"")
    (folder / "train" / "cat" / "more").mkdir()
    (folder / "train" / "cat" / "more" / "deep.png").write_bytes(b"")
    (folder / "train" / "README.md").write_text("no sample of anything")
    said = (
        "2 of the files below .*train are skipped, since .* folder of their class, the first of them cat/more/deep.png"
    )
    with pytest.warns(UserWarning, match=said):
        assert len(load(folder).train) == 20


@pytest.mark.parametrize("test_split", ["test", "val"])
def test_image_folder(tmp_path: Path, test_split: str) -> None:
    folder = image_folder(tmp_path / "pets", ("train", test_split))
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "empty").mkdir()  # no class
    with pytest.warns(UserWarning, match="1 of the files in .*train are skipped: no images"):
        data = load(folder)
    assert data.classes == ["cat", "dog"]
    assert data.train.x.shape == (20, 3, 8, 8)
    assert torch.bincount(data.test.y).tolist() == [10, 10]


def test_image_folder_without_test_split(tmp_path: Path) -> None:
    data = load(image_folder(tmp_path / "pets", ("train",)))
    assert (len(data.train), len(data.test)) == (16, 4)


# --- what can be wrong ----------------------------------------------------------------------------------------------


def test_cut_parquet_file(folder: Path) -> None:
    path = folder / "test.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"test.parquet is not a whole Parquet file .*fetch it again"):
        load(folder)


def test_corrupt_image(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "pets", ("train", "test"))
    (root / "train" / "dog" / "3.png").write_bytes(b"not a png")
    with pytest.raises(UserError, match=r"cannot read .*3.png"):
        load(root)


def test_truncated_image(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "pets", ("train", "test"))
    path = root / "train" / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match=r"cannot read .*3.png"):
        load(root)


def test_mixed_sizes(write_parquet: Write) -> None:
    mixed = images(3) + images(3, (10, 9))
    folder = write_parquet("z/train.parquet", mixed * 2, [0, 1] * 6).parent
    with pytest.raises(UserError, match=r"images of 2 sizes \(8×8, 9×10.*data.size=32"):
        load(folder)
    assert load(folder, size=12).shape == (1, 12, 12)


def test_one_class_only(write_parquet: Write) -> None:
    folder = write_parquet("o/train.parquet", images(10), [4] * 10).parent
    with pytest.raises(UserError, match="one class only"):
        load(folder)


@pytest.mark.parametrize("missing", [None, -1])
def test_missing_labels(write_parquet: Write, missing: int | None) -> None:
    write_parquet("l/train.parquet", images(10), [0, 1] * 5)
    folder = write_parquet("l/test.parquet", images(4), [0, 1, missing, missing]).parent
    with pytest.raises(UserError, match=r"2 samples of .*split 'test' have no label"):
        load(folder)


def test_unknown_test_label(write_parquet: Write) -> None:
    write_parquet("u/train.parquet", images(10), [0, 1] * 5)
    folder = write_parquet("u/test.parquet", images(2), [0, 5]).parent
    with pytest.raises(UserError, match="the label 5, which is not a training class"):
        load(folder)


def test_no_image_column(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match="no column of images among: text, label"):
        load(tmp_path, kind="image")
    with pytest.raises(UserError, match=r"column 'text' .* holds no images"):
        load(tmp_path, kind="image", image_column="text")


def test_no_train_split(write_parquet: Write) -> None:
    folder = write_parquet("n/test.parquet", images(4), [0, 1] * 2).parent
    with pytest.raises(UserError, match="no split 'train'"):
        load(folder)


def test_empty_folder_missing_folder_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither"):
        load(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        load(tmp_path / "nope")
    (tmp_path / "file.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="is not a whole Parquet file"):
        load(tmp_path / "file.parquet")
    (tmp_path / "file.doc").write_bytes(b"")
    with pytest.raises(UserError, match="is not a folder; give a CSV or Parquet file"):
        load(tmp_path / "file.doc")


@pytest.mark.parametrize("name", ["patient.csv", "data/patients.csv", "./patient.parquet"])
def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(UserError, match=f"there is no file '{name}'"):
        load(name)


def test_unknown_name_comes_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="unknown dataset 'cifar11'; did you mean 'cifar10'"):
        load("cifar11")


@pytest.mark.parametrize("name", ["fashion-mnist", "someone/something"])
def test_not_available_offline(name: str) -> None:
    with pytest.raises(UserError, match=rf"dataset '{name}' is neither in \$FEDETF_DATA nor in the cache"):
        load(name)


def test_the_hub_is_an_extra(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("fedetf.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"'cifar10' is not in \$FEDETF_DATA; .* pip install 'fedetf\[hub\]'"):
        load("cifar10")
    assert len(load(folder).train) == 30  # Parquet files need no extra


def test_the_hugging_face_cache_is_used(write_parquet: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that the library has in its cache loads without a network."""
    import datasets
    from datasets.packaged_modules.parquet.parquet import Parquet

    files = {
        "train": str(write_parquet("h/train.parquet", images(6), [0, 1] * 3)),
        "test": str(write_parquet("h/test.parquet", images(4), [0, 1] * 2)),
    }
    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    place = cache / "zalando-datasets___fashion_mnist" / "default" / "0.0.0" / ("0" * 40)
    builder = Parquet(dataset_name="fashion_mnist", hash="0" * 40, config_name="default", data_files=files)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    builder.info.features = features
    builder.download_and_prepare(output_dir=str(place))
    assert len(load("fashion-mnist").train) == 6


def test_train_grey_and_test_colour_become_colour(write_parquet: Write) -> None:
    write_parquet("g/train.parquet", images(6), [0, 1] * 3)
    folder = write_parquet("g/test.parquet", images(4, (8, 8, 3)), [0, 1] * 2).parent
    data = load(folder)
    assert data.train.x.shape == (6, 3, 8, 8)
    assert data.test.x.shape == (4, 3, 8, 8)


@pytest.mark.parametrize(("kind", "ending"), [(np.uint16, "png"), (np.float32, "tif"), (np.int32, "tif")])
def test_images_of_unknown_range_are_refused(kind: type, ending: str, tmp_path: Path) -> None:
    (tmp_path / "f" / "train" / "a").mkdir(parents=True)
    Image.fromarray(np.ones((8, 8), dtype=kind)).save(tmp_path / "f" / "train" / "a" / f"x.{ending}")
    with pytest.raises(UserError, match=rf"x\.{ending} has more than 8 bits a pixel .*, of unknown range"):
        load(tmp_path / "f")


def test_shards_and_splits_that_do_not_fit_together(write_parquet: Write) -> None:
    write_parquet("d/train_0.parquet", images(4), [0, 1] * 2)
    folder = write_parquet("d/train_1.parquet", images(4), ["a", "b"] * 2).parent
    with pytest.raises(UserError, match="have different columns"):
        load(folder)
    write_parquet("e/train.parquet", images(4), [0, 1] * 2)
    folder = write_parquet("e/test.parquet", images(4), [0, 1] * 2, ("photo", "label")).parent
    with pytest.raises(UserError, match="split 'test' has no column 'image'"):
        load(folder)


def test_class_names_must_agree(tmp_path: Path) -> None:
    import datasets

    for split, names in (("train", ["cat", "dog"]), ("test", ["dog", "cat"])):
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
        rows = [{"image": {"bytes": png(p), "path": None}, "label": i % 2} for i, p in enumerate(images(4))]
        datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(UserError, match="has other class names"):
        load(tmp_path)


def test_digits_and_paths_do_not_look_at_fedetf_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDETF_DATA", "no/such/folder")
    assert len(load("digits").train) == 1437
    assert len(load(folder).train) == 30


# --- the real thing, where it is ------------------------------------------------------------------------------------

REAL = Path(os.environ.get("FEDETF_TEST_DATA", "../shared/data"))


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs real images in ../shared/data or $FEDETF_TEST_DATA")
@pytest.mark.parametrize(
    ("name", "classes", "shape", "test"),
    [
        ("cifar10", 10, (3, 32, 32), 10_000),
        ("cifar100", 100, (3, 32, 32), 10_000),
        ("tiny-imagenet-subset", 200, (3, 64, 64), 2_000),
    ],
)
def test_real_images(
    name: str, classes: int, shape: tuple[int, ...], test: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDETF_DATA", str(REAL))
    data = load(name, limit=2 * classes)
    assert data.shape == shape
    assert len(data.classes) == classes
    assert torch.bincount(data.train.y).tolist() == [2] * classes
    assert len(data.test) == test
    assert torch.bincount(data.test.y).tolist() == [test // classes] * classes


def test_palette_images_become_colour(tmp_path: Path) -> None:
    root = tmp_path / "modes"
    for label in ("a", "b"):
        (root / "train" / label).mkdir(parents=True)
        for i in range(5):
            Image.new("P", (8, 8), i).save(root / "train" / label / f"{i}.png")
    assert load(root).shape == (3, 8, 8)
