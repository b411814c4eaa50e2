"""The round loop: partial participation, refused updates, what is measured and what is left alone."""

import pytest
import torch
from conftest import blobs
from torch import nn

import fedetf
from fedetf.engines.job import Job
from fedetf.engines.worker import Worker
from fedetf.errors import RunError
from fedetf.federation import Federation, Listener
from fedetf.methods import FedAvg, Scope

SMALL = {"data.limit": 150}


@pytest.mark.parametrize("method", ["fedavg", "fedetf"])
def test_same_seed_same_bits_other_seed_other_model(method: str, tmp_path) -> None:
    def final(seed: int, name: str) -> fedetf.Result:
        return fedetf.run(
            method=method,
            clients=4,
            participation=0.5,
            rounds=2,
            epochs=1,
            seed=seed,
            out=tmp_path / name,
            settings=SMALL,
        )

    a, b, c = final(7, "a"), final(7, "b"), final(8, "c")
    for name in ["model.safetensors", *(f"personal/{k}.safetensors" for k in range(4))]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert a.personal_per_client == b.personal_per_client
    assert [r.general for r in a.rounds] == [r.general for r in b.rounds]
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "c/model.safetensors").read_bytes()
    assert c.schedule != a.schedule


@pytest.mark.parametrize("method", ["fedavg", "fedetf"])
def test_the_personal_stage_leaves_the_server_alone(method: str) -> None:
    def final(personal: bool) -> dict:
        settings = {**SMALL, "personal.enabled": personal}
        return fedetf.run(method=method, clients=3, rounds=2, epochs=1, settings=settings).model().state_dict()

    a, b = final(True), final(False)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_personal_off_gives_no_personal_accuracy() -> None:
    result = fedetf.run(clients=3, rounds=1, epochs=1, settings={**SMALL, "personal.enabled": False})
    assert result.personal is None
    assert result.personal_per_client == []


def test_only_participants_train_and_all_are_personalised() -> None:
    result = fedetf.run(method="fedavg", clients=6, participation=0.5, rounds=2, epochs=1, settings=SMALL)
    for record, participants in zip(result.rounds, result.schedule, strict=True):
        assert record.participants == participants
        assert len(participants) == 3
        assert record.images == sum(len(result.partition.train[k]) for k in participants)
    assert len(result.personal_per_client) == 6


def test_last_five_is_the_mean_of_the_last_five_rounds_and_general_the_last() -> None:
    settings = {**SMALL, "measure.every": 3, "personal.enabled": False}
    result = fedetf.run(method="fedavg", clients=3, rounds=8, epochs=1, settings=settings)
    assert [r.round for r in result.rounds if r.general is not None] == [3, 4, 5, 6, 7, 8]
    values = [r.general for r in result.rounds]
    assert result.general == values[-1]
    assert result.general_last5 == pytest.approx(sum(values[3:]) / 5)


def test_general_accuracy_is_that_of_the_saved_model() -> None:
    result = fedetf.run(clients=3, rounds=2, epochs=2, settings=SMALL)
    test = result.job.dataset.test
    with torch.no_grad():
        logits = result.model()((test.x.float() / 255 - 0.5) / 0.5)
    assert result.general == (logits.argmax(1) == test.y).double().mean().item()


def test_personal_accuracy_is_that_of_the_saved_models(tmp_path) -> None:
    result = fedetf.run(clients=3, rounds=1, epochs=1, out=tmp_path / "run", settings=SMALL)
    train, accuracies = result.job.dataset.train, []
    for k, indices in enumerate(result.partition.test):
        with torch.no_grad():
            logits = result.model(client=k)((train.x[indices].float() / 255 - 0.5) / 0.5)
        accuracies.append((logits.argmax(1) == train.y[indices]).double().mean().item())
    assert result.personal_per_client == pytest.approx(accuracies)
    assert result.personal == pytest.approx(sum(accuracies) / 3)


def test_a_client_without_a_test_split_trains_but_does_not_count() -> None:
    data = blobs(clients=3)
    data[1] = (data[1][0][:3], data[1][1][:3])
    result = fedetf.run(method="fedavg", data=data, model=nn.Linear(5, 4), rounds=1)
    assert result.personal_per_client[1] is None
    first, _, third = result.personal_per_client
    assert result.personal == pytest.approx((first + third) / 2)
    assert result.summary["clients_without_test"] == 1
    assert result.rounds[0].participants == [0, 1, 2]


def test_an_empty_client_is_harmless() -> None:
    data = blobs(clients=3)
    data[2] = (data[2][0][:0], data[2][1][:0])
    result = fedetf.run(data=data, model=nn.Linear(5, 4), rounds=1)
    assert result.general is not None
    assert result.rounds[0].loss is not None
    assert result.personal_per_client[2] is None


class Poisoned(FedAvg):
    """FedAvg in which some clients send what must not be averaged."""

    bad: tuple[int, ...] = ()

    def upload(self, client):
        state = super().upload(client)
        if client.id in self.bad:
            state["head.bias"][0] = float("nan")
        return state


def poisoned(bad: tuple[int, ...]) -> Federation:
    result = fedetf.run(method="fedavg", clients=3, rounds=1, epochs=1, settings=SMALL)
    job = Job(result.settings, Poisoned(bad=bad), result.job.dataset, result.partition)
    return Federation(job, [[0, 1, 2]])


def test_a_bad_update_is_refused_and_the_round_goes_on_without_it() -> None:
    federation = poisoned((1,))
    record = next(federation.rounds())
    assert list(record.refused) == [1]
    assert "head.bias holds NaN" in record.refused[1]
    good = poisoned(())
    good.schedule = [[0, 2]]
    next(good.rounds())
    assert all(torch.equal(t, good.server.state[n]) for n, t in federation.server.state.items())


def test_a_round_of_bad_updates_stops_the_run_and_keeps_the_last_state() -> None:
    federation = poisoned((0, 1, 2))
    before = {name: tensor.clone() for name, tensor in federation.server.state.items()}
    with pytest.raises(RunError, match=r"round 1: every update was refused \(client 0: head.bias holds NaN"):
        next(federation.rounds())
    assert all(torch.equal(before[n], t) for n, t in federation.server.state.items())


def test_a_client_never_writes_to_what_it_received_and_its_upload_is_its_own() -> None:
    result = fedetf.run(clients=3, rounds=1, epochs=1, settings=SMALL)
    worker = Worker(result.job, torch.device("cpu"))
    shared = result.job.method.scoped(result.outcome.model, Scope.SHARED)
    before = {name: tensor.clone() for name, tensor in shared.items()}
    first = worker.train(0, 1, shared, {}).upload
    kept = {name: tensor.clone() for name, tensor in first.state.items()}
    worker.train(1, 1, shared, {})
    assert all(torch.equal(before[name], tensor) for name, tensor in shared.items())
    assert all(torch.equal(kept[name], tensor) for name, tensor in first.state.items())


def test_listeners_hear_of_everything_in_order() -> None:
    heard: list[str] = []

    class Ear(Listener):
        def started(self, _):
            heard.append("start")

        def round_done(self, record, server):
            heard.append(f"round {record.round}")
            assert server.round == record.round

        def personal_done(self, personal):
            heard.append(f"client {personal.client}")

        def finished(self, _):
            heard.append("end")

    fedetf.run(method="fedavg", clients=2, rounds=2, epochs=1, listeners=[Ear()], settings=SMALL)
    assert heard == ["start", "round 1", "round 2", "client 0", "client 1", "end"]


def test_the_callers_threads_are_put_back() -> None:
    torch.set_num_threads(2)
    try:
        fedetf.run(method="fedavg", clients=2, rounds=1, epochs=1, settings=SMALL)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_augmentation_changes_training_and_stays_reproducible() -> None:
    def final(augment: str) -> torch.Tensor:
        settings = {**SMALL, "data.augment": augment, "personal.enabled": False}
        return fedetf.run(method="fedavg", clients=2, rounds=1, epochs=1, settings=settings).model().head.weight

    assert torch.equal(final("crop_flip"), final("crop_flip"))
    assert not torch.equal(final("crop_flip"), final("none"))
