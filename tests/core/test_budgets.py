"""How much a client trains and how long a run is: epochs, parts of one, steps, and early stopping."""

import os
import signal
from pathlib import Path

import pytest
import torch
from conftest import blobs
from processes import in_child
from same import assert_equal, assert_same_run
from sites import Wire, assert_same_model, make_app, no_pauses

import fedetf
from fedetf.federation import Listener

__all__ = ["no_pauses"]  # a fixture for every test here

SETTINGS = {"data.limit": 600, "data.test_limit": 60, "personal.rounds": 1, "train.batch_size": 16}
OPTIONS = {"clients": 4, "alpha": 0.3, "model": "mlp", "engine": "serial"}
STILL = {**SETTINGS, "data.validation_fraction": 0.3, "train.lr": 1e-6, "train.patience": 2}  # it stops after three


def trained(method: str = "fedavg", **settings: object) -> fedetf.Result:
    """Two clients with 32 samples to train on each: two batches of 16."""
    *data, test = blobs(clients=3, n=32)
    common = {"data.test_fraction": 0.0, "train.batch_size": 16, "train.rounds": 2, "model.name": "mlp"}
    return fedetf.run(data=data, test=test, method=method, settings={**common, **settings}, engine="serial")


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "fedetf", "fedfa"])
def test_steps_are_epochs_where_all_clients_have_the_same_number_of_batches(method: str) -> None:
    assert_equal(trained(method, **{"train.steps": 4}), trained(method, **{"train.epochs": 2}))


def test_a_part_of_an_epoch_is_its_first_batches() -> None:
    half, whole = trained(**{"train.epochs": 0.5}), trained(**{"train.epochs": 1.5})
    assert_equal(half, trained(**{"train.steps": 1}))
    assert_equal(whole, trained(**{"train.steps": 3}))
    assert [record.images for record in half.rounds] == [2 * 16, 2 * 16]  # two clients, one batch
    assert half.summary["epochs_train"] == pytest.approx(2 * 0.5)


def test_every_client_takes_the_same_steps_however_much_it_holds() -> None:
    (many,), (few,) = blobs(clients=1, n=100), blobs(clients=1, n=20)
    common = {"data.test_fraction": 0.0, "train.batch_size": 16, "train.steps": 5, "personal.enabled": False}
    result = fedetf.run(data=[many, few], test=few, method="fedavg", model="mlp", rounds=1, settings=common)
    # 100 samples are batches of 16, 16, 16, 16, 16, 16, 4; 20 are 16 and 4, again and again: 16 + 4 + 16 + 4 + 16
    assert result.rounds[0].images == 5 * 16 + 56


def test_the_personal_stage_has_the_budget_of_a_round_or_its_own() -> None:
    assert trained(**{"train.steps": 3}).outcome.personal_epochs == pytest.approx(1.5)
    assert trained(**{"train.steps": 3, "personal.epochs": 0.5}).outcome.personal_epochs == pytest.approx(0.5)


@pytest.mark.parametrize("method", ["fedavg", "ccvr"])
def test_a_run_that_stops_early_is_one_that_was_so_long(method: str) -> None:
    stopped = fedetf.run(method=method, rounds=9, settings=STILL, **OPTIONS)
    assert len(stopped.rounds) == 3  # the first is the best; two more are waited for
    short = fedetf.run(method=method, rounds=3, settings={**STILL, "train.patience": 0}, **OPTIONS)
    assert_equal(stopped, short)
    assert stopped.general_last5 == short.general_last5
    assert stopped.summary["validation"] == short.summary["validation"]


def test_engines_and_a_killed_run_stop_in_the_same_round(tmp_path: Path) -> None:
    options = {"method": "ccvr", "rounds": 9, "settings": {**STILL, "engine.checkpoint": 2, "train.steps": 3}}
    fedetf.run(out=tmp_path / "serial", **options, **OPTIONS)
    fedetf.run(out=tmp_path / "processes", **options, **{**OPTIONS, "engine": "processes", "workers": 2})
    assert_same_run(tmp_path / "serial", tmp_path / "processes")

    class Kill(Listener):
        def round_done(self, record: fedetf.outcome.Round, server: object) -> None:
            if record.round == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    in_child(lambda: fedetf.run(out=tmp_path / "broken", listeners=[Kill()], **options, **OPTIONS))
    result = fedetf.resume(tmp_path / "broken")
    assert len(result.rounds) == 3
    assert_same_run(tmp_path / "serial", tmp_path / "broken")


def test_sites_stop_too(tmp_path: Path) -> None:
    app = make_app(tmp_path / "app", "fedavg", 9, model="mlp", limit=300)
    text = (app / "settings.toml").read_text().replace("lr = 0.05", "lr = 1e-6\nsteps = 2\npatience = 1")
    (app / "settings.toml").write_text(text.replace("[data]\n", "[data]\nvalidation_fraction = 0.3\n"))
    Wire(app, tmp_path / "kept", out=str(tmp_path / "run")).run_server()
    result = fedetf.run(str(app / "settings.toml"), clients=3, engine="serial", out=tmp_path / "simulated")
    assert len(result.rounds) == 2
    assert_same_model(tmp_path / "run", tmp_path / "simulated")
    assert (tmp_path / "run/result.json").exists()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("fedavg", {"train.patience": 2}, "^train.patience needs a validation split; set data.validation_fraction too"),
        ("fedavg", {**STILL, "measure.every": 2}, "^train.patience looks at every round; leave out measure.every"),
        ("fedproto", STILL, "train.patience looks at the global model, and fedproto has none"),
        ("fedavg", {"train.epochs": 0}, "train.epochs: input should be greater than 0"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(method: str, settings: dict, message: str) -> None:
    with pytest.raises(fedetf.UserError, match=message):
        fedetf.run(method=method, settings=settings, clients=3)


def test_patience_in_a_comparison_leaves_the_reference_without_a_global_model_alone(tmp_path: Path) -> None:
    compared = fedetf.compare(["fedavg"], [7], rounds=4, settings=STILL, out=tmp_path / "grid", **OPTIONS)
    assert not compared.failed
    rounds = {line.row["method"]: len(line.runs[0].rounds) for line in compared.lines}
    assert rounds["fedavg"] == 3
    assert rounds["local"] == 4  # it has nothing to look at


def test_an_equal_budget_counts_epochs_also_parts_of_them(tmp_path: Path) -> None:
    options = {"clients": 3, "rounds": 1, "equal_budget": True, "out": tmp_path / "grid"}
    with pytest.raises(fedetf.UserError, match="--equal-budget counts epochs"):
        fedetf.compare(["fedavg", "fedrep"], [7], settings={"train.steps": 3}, **options)
    fedetf.compare(["fedavg", "fedrep"], [7], settings={**SETTINGS, "train.epochs": 0.5}, **options)
    lines = [(tmp_path / f"grid/{name}-s7/config.toml").read_text() for name in ("fedavg", "fedrep")]
    assert ["[personal]\nenabled = true\nepochs = 2\n" in text for text in lines] == [True, False]
    assert "[personal]\nenabled = true\nepochs = 1\n" in lines[1]  # FedRep takes two phases


def test_torch_draws_as_it_did() -> None:
    """The stream of a client's batches: whole epochs, one permutation each, whatever the budget."""
    from fedetf.core.batches import shuffled

    first, second = (torch.randperm(5, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    assert torch.cat(list(shuffled(5, [2, 3], 2, generator))).tolist() == first.tolist() == second.tolist()
    untouched = torch.Generator().manual_seed(0)
    torch.randperm(5, generator=untouched)
    assert torch.equal(generator.get_state(), untouched.get_state())  # nothing is drawn that is not used
