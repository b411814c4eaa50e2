"""All data in one place: FedAvg with one client, and the same number of image passes as the federated run."""

import numpy as np
import pytest
import torch
from by_hand import DIGITS, SMALL, job_of, same_bits, small_run
from quadratic import quadratic, quadratic_loss, weight

import fedetf
from fedetf.core.state import clone
from fedetf.engines.worker import Worker
from fedetf.federation import Federation
from fedetf.methods import METHODS, Method


def test_one_client_is_fedavgs_one_client_to_the_bit() -> None:
    for model in ("mlp", "cnn"):
        one = {"clients": 1, "model": model}
        assert same_bits(small_run("fedavg", one), small_run("pooled", one))


def test_many_clients_are_fedavg_with_one_that_holds_all_to_the_bit() -> None:
    """Nothing is held out, so that the one client holds what the many hold together, in the same order."""
    nothing = {"data.test_fraction": 0.0}
    many, one = small_run("pooled", nothing), small_run("fedavg", {**nothing, "clients": 1})
    assert all(torch.equal(tensor, one.outcome.model[name]) for name, tensor in many.outcome.model.items())
    assert [r.general for r in many.rounds] == [r.general for r in one.rounds]


def test_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in each of two epochs of a round, halfway to 4 (the pool's centre here): 2, then 3, and 3.75 after two."""
    monkeypatch.setattr(Method, "loss", quadratic_loss([4.0, 8.0, -8.0]))
    federation = quadratic(METHODS["pooled"], [4.0, 8.0, -8.0], [[0, 1], [2]], lr=0.5, epochs=2)
    rounds = federation.rounds()
    assert next(rounds).images == 2 * 4  # two epochs of the four samples that clients 0 and 1 hold
    assert weight(federation) == pytest.approx(3.0)
    assert next(rounds).images == 2 * 2
    assert weight(federation) == pytest.approx(3.75)


def test_as_many_image_passes_as_the_federated_run_under_any_participation() -> None:
    for participation in (1.0, 0.4):
        options = {"clients": 5, "participation": participation, "rounds": 3, "personal.enabled": False}
        pooled, federated = small_run("pooled", options), small_run("fedavg", options)
        assert [r.images for r in pooled.rounds] == [r.images for r in federated.rounds]
        assert [r.participants for r in pooled.rounds] == [r.participants for r in federated.rounds]
        assert pooled.summary["epochs_train"] == federated.summary["epochs_train"]


@pytest.mark.parametrize(
    "work",
    [
        {"train.steps": 3},
        {"epochs": 0.5},
        {"epochs": 3, "system.stragglers": 0.7},
        {"train.steps": 3, "system.stragglers": 0.7},
        {"system.dropout": 0.5},
    ],
    ids=str,
)
def test_as_many_to_the_nearest_batch_however_long_the_participants_train(work: dict) -> None:
    """Of eight images; some clients hold less than a batch."""
    options = {"clients": 5, "rounds": 3, "personal.enabled": False, **work}
    pooled, federated = small_run("pooled", options), small_run("fedavg", options)
    for ours, theirs in zip(pooled.rounds, federated.rounds, strict=True):
        assert ours.images == pytest.approx(theirs.images, abs=4)


def test_participants_without_samples_change_nothing() -> None:
    """Client 0, which stands for the pool, has some; it does not take part."""
    federation = Federation(job_of(METHODS["pooled"](), [[2, 3], [0, 0]], width=2), [[1]])
    before = clone(federation.server.state)
    (record,) = federation.rounds()
    assert record.images == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in federation.server.state.items())


@pytest.mark.parametrize(
    "exchange",
    [{"update.clip": 0.01}, {"update.top_k": 0.01}, {"update.bits": 1}, {"server.optimiser": "adam"}],
    ids=str,
)
def test_what_is_done_to_updates_is_not_done_where_none_travel(exchange: dict) -> None:
    """Or the ceiling would come down with the methods under it."""
    assert same_bits(small_run("pooled"), small_run("pooled", exchange))


def test_an_epoch_draws_from_all_training_splits_and_from_nothing_else() -> None:
    """Whoever takes part; test splits, what is held out to validate and unseen clients stay out."""
    job = small_run("pooled", {"clients": 4, "data.validation_fraction": 0.2, "data.unseen": 1}).job
    partition, worker = job.partition, Worker(job, torch.device("cpu"))
    client = worker.client(0, 1, worker.net.state_dict(), {}, epochs=1, lr=0.1, pooled=7)
    pool = np.sort(np.concatenate([partition.train[k] for k in partition.seen]))
    assert client._train.tolist() == pool.tolist()
    assert client.counts.tolist() == np.bincount(job.dataset.train.y.numpy()[pool], minlength=10).tolist()
    epochs: list[set[int]] = []

    def loss(client, batch):
        epochs.append(set(batch.rows.tolist()))
        return 0 * batch.h.sum()

    client.train(loss, epochs=60)
    assert {len(epoch) for epoch in epochs} == {7}
    assert set().union(*epochs) == set(range(len(pool)))


def test_the_personal_stage_is_fedavgs_from_the_pooled_model() -> None:
    job = small_run("pooled").job
    federation = Federation(job, [[0, 1, 2]])
    list(federation.rounds())
    ordinary = Worker(
        fedetf.engines.job.Job.make(job.settings, job.dataset, job.partition, method=METHODS["fedavg"]()),
        torch.device("cpu"),
    )
    for personal in federation.engine.personalise(range(3), federation.server.state):
        wanted = ordinary.personalise(personal.client, federation.server.state, {})
        assert all(torch.equal(tensor, wanted.state[name]) for name, tensor in personal.state.items())


def test_kept_momentum_is_of_the_pool_and_no_clients() -> None:
    """Client 0 stands for the pool in the rounds; in the personal stage it begins as the others do."""
    job = small_run("pooled", {"train.keep_momentum": True}).job
    federation = Federation(job, [[0, 1, 2], [0, 1, 2]])
    list(federation.rounds())
    assert federation.private.load(0)
    (kept,) = federation.engine.personalise([0], federation.server.state)
    nothing = Worker(job, torch.device("cpu")).personalise(0, federation.server.state, {})
    assert all(torch.equal(tensor, nothing.state[name]) for name, tensor in kept.state.items())


def test_no_model_travels() -> None:
    result = small_run("pooled")
    assert result.summary["bytes_up"] == result.summary["bytes_down"] == 0


def test_noise_is_refused() -> None:
    noisy = {**DIGITS, "update.noise": 1.0, "update.clip": 1.0}
    with pytest.raises(fedetf.UserError, match=r"^pooled has all data in one place.*leave out update\.noise$"):
        fedetf.run(method="pooled", settings=noisy, **SMALL)
