from pathlib import Path

import pytest

from fedetf import UserError
from fedetf.config import describe_settings, known_datasets, parse_assignment, preset_names, resolve
from fedetf.data import DATASETS
from fedetf.settings import Settings


def test_layers_dataset_then_source_then_overrides(tmp_path: Path) -> None:
    assert resolve(None, {"data.name": "cifar10"}).train.lr == 0.04
    assert resolve(None, {"data.name": "cifar100"}).train.lr == 0.01
    assert resolve(None, {"data.name": "tiny-imagenet-subset"}).model.name == "resnet18"
    file = tmp_path / "mine.toml"
    file.write_text('[data]\nname = "cifar10"\n[train]\nlr = 0.2\nrounds = 3\n')
    settings = resolve(str(file), {"train.rounds": 9})
    assert (settings.train.lr, settings.train.rounds, settings.model.name) == (0.2, 9, "resnet20")


# The paper's appendix B and section 5.1.
@pytest.mark.parametrize(
    ("preset", "model", "lr", "rounds", "epochs"),
    [
        ("cifar10", "resnet20", 0.04, 200, 3),
        ("cifar100", "resnet20", 0.01, 200, 3),
        ("tiny-imagenet", "resnet18", 0.01, 50, 1),
    ],
)
def test_the_papers_numbers(preset: str, model: str, lr: float, rounds: int, epochs: int) -> None:
    s = resolve(preset)
    assert (s.model.name, s.train.lr, s.train.rounds, s.train.epochs) == (model, lr, rounds, epochs)
    assert (s.data.clients, s.train.participation, s.train.lr_decay) == (20, 1.0, 0.99)
    assert (s.train.momentum, s.train.weight_decay, s.train.batch_size) == (0.9, 5e-4, 128)
    assert (s.data.test_fraction, s.data.augment) == (0.3, "none")


def test_a_known_dataset_is_a_preset_and_no_other_preset_is_a_dataset() -> None:
    assert set(known_datasets()) == set(DATASETS)
    for name in known_datasets():
        assert resolve(name) == resolve(None, {"data.name": name})
    for name in set(preset_names()) - set(known_datasets()):  # authors, demo: data of that name get nothing of theirs
        plain = resolve(None, {"data.name": "nobody's"})
        assert resolve(None, {"data.name": name}).train == plain.train
        assert resolve(None, {"data.name": name}).fidelity == plain.fidelity


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_valid_and_comes_back_from_toml(preset: str, tmp_path: Path) -> None:
    settings = resolve(preset)
    path = tmp_path / "config.toml"
    path.write_text(settings.to_toml())
    assert resolve(str(path)) == settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"nosuch.key": 1}, "unknown setting 'nosuch'; there are: data, engine"),
        ({"train.nope": 1}, "unknown setting 'train.nope'; train has: batch_size, epochs"),
        ({"data.alpha": 0}, "data.alpha: input should be greater than 0"),
        ({"data.alpha": float("nan")}, "data.alpha: input should be a finite number"),
        ({"data.clients": 0}, "data.clients: input should be greater than or equal to 1"),
        ({"train.rounds": -1}, "train.rounds: input should be greater than or equal to 1"),
        ({"train.participation": 1.5}, "train.participation: input should be less than or equal to 1"),
        ({"train.lr": "fast"}, "train.lr: input should be a valid number"),
        ({"data.partition": 3}, "data.partition: input should be a valid string"),
        ({"seed.x": 1}, "seed: input should be a valid integer"),
        ({"seed": 1, "seed.x": 1}, "'seed.x' sets something inside 'seed', which is a value"),
        ({"data": 3}, "data: "),
    ],
)
def test_bad_settings_are_named(overrides: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(None, overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_sources(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown preset 'cifar1'; did you mean 'cifar10'"):
        resolve("cifar1")
    with pytest.raises(UserError, match=r"no settings file 'nope.toml'"):
        resolve("nope.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(UserError, match="is not valid TOML"):
        resolve(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.lr=0.1", "train.lr", 0.1),
        ("data.limit = 2000", "data.limit", 2000),
        ("data.strict=true", "data.strict", True),
        ("data.name=my/data", "data.name", "my/data"),
        ('data.name="a=b"', "data.name", "a=b"),
    ],
)
def test_assignments(text: str, key: str, value: object) -> None:
    assert parse_assignment(text) == (key, value)


@pytest.mark.parametrize("text", ["train.lr", "=3", ""])
def test_bad_assignments(text: str) -> None:
    with pytest.raises(UserError, match=r"key.path=value"):
        parse_assignment(text)


def test_every_setting_says_what_it_is() -> None:
    rows = describe_settings()
    assert all(description for _, _, description in rows)
    assert {key.split(".")[0] for key, _, _ in rows} == set(Settings.model_fields)


@pytest.mark.parametrize("key", ["method..", "method.a.b"])
def test_a_methods_numbers_are_no_sections(key: str) -> None:
    with pytest.raises(UserError, match="is a value, not a section"):
        resolve(None, {key: False})
