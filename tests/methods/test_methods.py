"""What every method must do, whatever it is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedetf
from fedetf.api import prepare
from fedetf.cli import main
from fedetf.config import from_short, resolve
from fedetf.engines.job import Job
from fedetf.engines.worker import Worker, sent_parameters
from fedetf.federation import Federation
from fedetf.methods import METHODS
from fedetf.runs.read import read_run

TEN = ["fedavg", "fedprox", "feddyn", "ditto", "fedrep", "fedrod", "ccvr", "fedproto", "fednh", "fedetf"]
OPTIONS = {"clients": 4, "alpha": 0.2, "participation": 0.5, "rounds": 2, "epochs": 1}
SMALL = {"data.limit": 150, "personal.rounds": 2}

pytestmark = pytest.mark.slow


def eight_clients(seed: int = 0) -> tuple[list, tuple]:
    """Digits on eight clients, the first of which holds a single class; and their test set."""
    dataset = fedetf.data.load_dataset(fedetf.settings.DataSettings(), seed)
    x, y = dataset.train.x.numpy(), dataset.train.y.numpy()
    ones = np.flatnonzero(y == 1)[:30]
    rest = np.array_split(np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(400), ones)), 7)
    return [(x[rows], y[rows]) for rows in [ones, *rest]], (dataset.test.x.numpy(), dataset.test.y.numpy())


def job_of(method: str) -> Job:
    """What `fedetf.run` would train, untrained."""
    return prepare(resolve(None, {**from_short({**OPTIONS, "method": method}), **SMALL}))


def test_the_ten_come_first_and_all_have_descriptions_and_citations(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(METHODS)[:10] == TEN
    assert main(["list", "methods", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(METHODS)
    assert all(row["description"] for row in rows)
    assert all("20" in row["citation"] for row in rows if METHODS[row["name"]].family != "reference")


@pytest.mark.parametrize("method", METHODS)
def test_partial_participation_and_a_client_with_one_class(method: str, tmp_path) -> None:
    data, test = eight_clients()
    out = tmp_path / "run"
    result = fedetf.run(
        method=method, data=data, test=test, model="cnn", participation=0.5, rounds=2, epochs=1, out=out, settings=SMALL
    )
    written = json.loads((out / "result.json").read_text())
    assert (written["general"] is None) == (not METHODS[method].has_global and not METHODS[method].measures_clients)
    assert 0 < written["personal"] <= 1
    assert len(written["personal_per_client"]) == 8
    assert written["clients_with_one_class"] >= 1
    assert len(result.schedule[0]) == 4
    never = set(range(8)) - {k for ks in result.schedule for k in ks}
    assert all((out / f"personal/{k}.safetensors").is_file() for k in never)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits(method: str, tmp_path) -> None:
    for name in "ab":
        fedetf.run(method=method, out=tmp_path / name, settings=SMALL, **OPTIONS)
    for name in ["model", *(f"personal/{k}" for k in range(4))]:
        a, b = ((tmp_path / run / f"{name}.safetensors").read_bytes() for run in "ab")
        assert a == b


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_stage_leaves_server_and_client_states_alone(method: str) -> None:
    job = job_of(method)
    federation = Federation(job, [[0, 2], [1, 2]])
    list(federation.rounds())
    rounds = dict(federation.private.rounds)
    assert set(rounds) in (set(), {0, 1, 2})  # a method keeps a state for every client that took part, or for none
    private = [federation.private.load(k) for k in rounds]
    states = [federation.server.state, federation.server.own, *private]
    before = [{name: tensor.clone() for name, tensor in state.items()} for state in states]
    list(federation.engine.personalise(range(len(federation.job.partition)), federation._received()))
    assert federation.private.rounds == rounds
    for old, new in zip(before, states, strict=True):
        assert all(torch.equal(tensor, new[name]) for name, tensor in old.items())


@pytest.mark.parametrize("method", METHODS)
def test_a_client_does_not_depend_on_who_ran_before_on_the_same_worker(method: str) -> None:
    job = job_of(method)
    received = Federation(job, [])._received()
    used, fresh = Worker(job, torch.device("cpu")), Worker(job, torch.device("cpu"))
    used.personalise(0, received, {})
    used.train(1, 1, received, {})
    used.evaluate(received, 0, 10)
    a, b = (worker.train(2, 1, received, {}) for worker in (used, fresh))
    assert a.upload.state.keys() == b.upload.state.keys()
    assert all(torch.equal(tensor, b.upload.state[name]) for name, tensor in a.upload.state.items())
    assert all(torch.equal(tensor, b.private[name]) for name, tensor in a.private.items())


@pytest.mark.parametrize("method", METHODS)
def test_uploads_share_no_memory_with_anything(method: str) -> None:
    job = job_of(method)
    federation = Federation(job, [])
    worker = Worker(job, torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in federation.server.state.items()}
    first = worker.train(0, 1, federation._received(), {})
    kept = {name: tensor.clone() for name, tensor in {**first.upload.state, **first.private}.items()}
    worker.train(1, 1, federation._received(), {})
    assert all(torch.equal(tensor, kept[name]) for name, tensor in {**first.upload.state, **first.private}.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.server.state.items())


@pytest.mark.parametrize("method", METHODS)
def test_encoder_without_batchnorm_and_plain_vectors(method: str) -> None:
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(3), 10)
    data = [((rng.normal(size=(30, 5)) + 3 * y[:, None]).astype(np.float32), y) for _ in range(3)]
    result = fedetf.run(method=method, data=data, model=torch.nn.Linear(5, 4), rounds=2, epochs=1, settings=SMALL)
    assert result.personal is not None


@pytest.fixture(scope="module")
def fedavg() -> fedetf.Result:
    return fedetf.run(method="fedavg", settings=SMALL, **OPTIONS)


@pytest.mark.xdist_group("fedavg")  # one worker, so that it is trained once
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedrod", "ccvr", "fednh", "fedetf"])
def test_initial_encoder_partition_and_schedule_are_the_same_for_all(method: str, fedavg: fedetf.Result) -> None:
    a, b = fedavg, fedetf.run(method=method, settings=SMALL, **OPTIONS)
    first, second = (run.job.build_net().encoder.state_dict() for run in (a, b))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert a.schedule == b.schedule
    assert a.partition.to_json() == b.partition.to_json()


@pytest.mark.parametrize("method", ["fedprox", "fedrod", "fednh", "fedetf"])
def test_no_update_at_all_leaves_the_server_as_it_is(method: str) -> None:
    federation = Federation(job_of(method), [])
    before = {name: tensor.clone() for name, tensor in federation.server.state.items()}
    federation.method.aggregate(federation.server, [])
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.server.state.items())


def test_keeping_momentum_works_or_is_refused_and_keeps_dittos_identity() -> None:
    settings = {**SMALL, "train.keep_momentum": True}
    counting = {"scaffold", "fednova"}  # they count steps whose momentum starts from zero
    runs = {m: fedetf.run(method=m, settings=settings, **OPTIONS) for m in METHODS if m not in counting}
    for method in counting:
        with pytest.raises(fedetf.UserError, match=r"set train\.keep_momentum=false"):
            fedetf.run(method=method, settings=settings, **OPTIONS)
    a, b = (runs[m].model().state_dict() for m in ("fedavg", "ditto"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_client_whose_private_state_is_broken_is_refused() -> None:
    """Ditto with an absurd λ: v_k explodes although the upload is sound."""
    options = {**OPTIONS, "participation": 1.0, "epochs": 20}
    with pytest.raises(fedetf.RunError, match="every update was refused"):
        fedetf.run(method="ditto", settings={**SMALL, "method.lam": 1e5}, **options)


def test_empty_clients_change_nothing_for_feddyn() -> None:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 5)).astype(np.float32), np.arange(20) % 2) for _ in range(2)]
    empty = (data[0][0][:0], data[0][1][:0])
    torch.manual_seed(0)
    encoder = torch.nn.Linear(5, 4)
    options = {"method": "feddyn", "model": encoder, "test": data[0], "rounds": 2, "epochs": 1}
    a, b = (fedetf.run(data=d, **options).model().state_dict() for d in (data, [*data, empty]))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_fidelity_leaves_a_users_own_method_alone() -> None:
    class FedProx(fedetf.Method):
        """The user's own, which happens to have a name of ours."""

    result = fedetf.run(method=FedProx, settings={**SMALL, "fidelity": "authors"}, **OPTIONS)
    assert type(result.job.method) is FedProx


def test_a_part_of_the_encoder_can_be_trained_alone() -> None:
    job = job_of("fedavg")
    client = Worker(job, torch.device("cpu")).client(0, 1, Federation(job, []).server.state, {}, epochs=1, lr=0.1)
    before = {name: tensor.clone() for name, tensor in client.net.named_parameters()}
    client.train(job.method.loss, ["encoder.stages.1", "head"])
    moved = {name for name, tensor in client.net.named_parameters() if not torch.equal(tensor, before[name])}
    assert moved
    assert all(name.startswith(("encoder.stages.1.", "head.")) for name in moved)
    assert any(name.startswith("encoder.stages.1.") for name in moved)


@pytest.mark.parametrize("method", METHODS)
def test_the_servers_optimiser_moves_what_clients_train_and_send_and_nothing_else(method: str) -> None:
    """Not BatchNorm's statistics, prototypes, anchors, temperatures; nothing where no model travels."""
    after = []
    for optimiser in ("none", "adam"):
        job = prepare(
            resolve(None, {**from_short({**OPTIONS, "method": method}), **SMALL, "server.optimiser": optimiser})
        )
        federation = Federation(job, [[0, 2]])
        list(federation.rounds())
        after.append(federation.server.state)
    moved = {name for name, tensor in after[0].items() if not torch.equal(tensor, after[1][name])}
    sent = set(sent_parameters(job.method, job.build_net())) - set(job.method.temperatures)
    assert moved == (set() if job.method.pools else sent)


@pytest.mark.parametrize("method", ["ccvr", "spherefed"])
def test_a_completed_model_is_measured_at_each_of_the_last_five_rounds(method: str, tmp_path: Path) -> None:
    """After t rounds it is the final model of a run of t rounds; the rounds themselves go on as if nothing happened."""
    options = {"method": method, "clients": 3, "epochs": 1, "alpha": 0.3, "model": "mlp", "engine": "serial"}
    options["settings"] = {"data.limit": 120, "data.test_limit": 50, "data.validation_fraction": 0.2, "train.lr": 0.1}
    result = fedetf.run(rounds=7, out=tmp_path / "run", **options)
    ends = {t: fedetf.run(rounds=t, **options) for t in range(3, 8)}
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [t for t, line in enumerate(lines, start=1) if "completed" in line] == list(ends)
    assert [lines[t - 1]["completed"]["general"] for t in ends] == [end.general for end in ends.values()]
    validations = [end.summary["validation"]["general"] for end in ends.values()]
    assert [lines[t - 1]["completed"]["validation"] for t in ends] == validations
    assert any(line["general"] != line["completed"]["general"] for line in lines[2:])
    assert result.general_last5 == pytest.approx(sum(end.general for end in ends.values()) / 5)
    assert result.summary["validation"]["general_last5"] == pytest.approx(sum(validations) / 5)
    rounds_up = sum(line["bytes_up"] for line in lines)
    last_exchange = ends[3].summary["bytes_up"] - sum(r.bytes_up for r in ends[3].rounds)
    assert result.summary["bytes_up"] == rounds_up + last_exchange > rounds_up  # those for measuring do not count
    assert read_run(tmp_path / "run").curve("general")[2:] == [end.general for end in ends.values()]
