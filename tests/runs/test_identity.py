"""What decides a run: what does not leaves every bit as it is, and names of folders stay what they were."""

from pathlib import Path

import pytest
import torch

import fedetf
from fedetf.config import describe_settings, resolve
from fedetf.paper.experiment import Part, load_experiment, plan
from fedetf.runs.identity import MAY_CHANGE, decides_folder, decides_numbers, digest, identity

SMALL = {"clients": 4, "rounds": 2, "epochs": 1, "method": "fedetf"}
FAST = {"data.limit": 200, "personal.enabled": False, "engine.name": "serial"}

# A value that is not the default, for every setting that decides no number.
OTHERS = {
    "engine.name": "processes",
    "engine.workers": 2,
    "engine.device": "cpu",
    "engine.checkpoint": 2,
    "engine.address": None,
    "measure.every": 2,
    "measure.collapse": True,
    "measure.metrics": ["accuracy", "log_loss"],
    "measure.tensorboard": False,
    "measure.mlflow": None,
    "measure.wandb": None,
}


def model(folder: Path, **more: object) -> dict[str, torch.Tensor]:
    return fedetf.run(**SMALL, settings={**FAST, **more}, out=folder).outcome.model


def test_every_setting_that_decides_no_number_is_tried_here() -> None:
    keys = [key for key, _, _ in describe_settings()]
    assert {key for key in keys if not decides_numbers(key)} == set(OTHERS)


def test_the_model_is_the_same_wherever_it_runs_and_whatever_is_noted(tmp_path: Path) -> None:
    plain, other = model(tmp_path / "a"), model(tmp_path / "b", **OTHERS)
    assert plain.keys() == other.keys()
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    one, two = (resolve(str(tmp_path / name / "config.toml")) for name in "ab")
    noted = {"measure.every", "measure.collapse", "measure.metrics", "measure.tensorboard"}
    assert {key for key in identity(one) if identity(one)[key] != identity(two)[key]} == noted


@pytest.mark.parametrize("key", ["engine.threads", "engine.compile", "engine.precision", "update.max_ratio", "seed"])
def test_what_can_change_a_bit_decides(key: str) -> None:
    assert decides_numbers(key)
    assert decides_folder(key)


def test_a_resumed_run_may_change_what_does_not_decide_its_folder(tmp_path: Path) -> None:
    model(tmp_path / "run")
    with pytest.raises(fedetf.UserError, match=r"measure\.collapse belongs to the run and stays"):
        fedetf.resume(tmp_path / "run", settings={"measure.collapse": True})
    assert not any(map(decides_folder, MAY_CHANGE))
    fedetf.resume(tmp_path / "run", settings={"engine.checkpoint": 2})


def test_the_methods_numbers_decide_whether_or_not_they_are_named() -> None:
    named, left_out = resolve(None, {"method.gamma": 1.0}), resolve(None)
    assert identity(named) == identity(left_out)
    assert identity(resolve(None, {"method.gamma": 0.5})) != identity(left_out)


def test_names_of_folders_stay() -> None:
    """They are on disks: a changed name would run everything anew. These are of version 0.1.0."""
    part = Part(columns=["CIFAR-10, α = 0.1"], methods=["fedavg", "fedetf"], seeds=[8])
    trials = plan(load_experiment("table1"), "small", part, {"fidelity": "authors"}, Path("out"))
    assert [trial.run.folder.name for trial in trials] == ["cifar10-fedavg-ea7fe183-s8", "cifar10-fedetf-0d8e4f96-s8"]
    assert digest(resolve(None, {"seed": 1, "engine.workers": 2})) == digest(resolve(None, {"seed": 2}))
