"""Own data as a list of (x, y), own encoders as any module."""

import numpy as np
import pytest
import torch
from conftest import blobs, images
from torch import nn

import fedetf
from fedetf import UserError


def test_labels_of_any_kind_and_plain_vectors() -> None:
    data = [(x, np.array(["cat", "dog", "eel"])[y]) for x, y in blobs(clients=4)]
    result = fedetf.run(method="fedavg", data=data, model="mlp", rounds=5, settings={"train.batch_size": 8})
    assert result.partition.classes == ["cat", "dog", "eel"]
    assert len(result.partition) == 4
    assert result.settings.data.name == "own"
    assert result.settings.data.clients == 4
    assert result.general > 0.8  # three blobs that a line can part


def test_without_a_test_set_general_is_measured_on_what_clients_hold_out() -> None:
    data = blobs(clients=2)
    result = fedetf.run(method="fedavg", data=data, model=nn.Linear(5, 4), rounds=1)
    held_out = np.concatenate(result.partition.test)
    assert torch.equal(result.job.dataset.test.x, result.job.dataset.train.x[held_out])


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (3, 8, 8), (1, 8, 8), (8, 8, 1)])
def test_uint8_images_in_every_usual_order(shape: tuple[int, ...]) -> None:
    pictures = np.stack(images(20, shape))
    data = [(pictures, np.arange(20) % 2)] * 2
    result = fedetf.run(method="fedavg", data=data, rounds=1, epochs=1)
    channels = 3 if 3 in shape else 1
    assert result.job.dataset.shape == (channels, 8, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: [], "data is empty"),
        (lambda d: [(d[0][0], d[0][1][:-1]), *d[1:]], "client 0 has 20 inputs but 19 labels"),
        (lambda d: [(d[0][0][:, :4], d[0][1]), *d[1:]], "different shapes or types"),
        (lambda d: [(d[0][0].ravel(), d[0][1]), *d[1:]], "client 0: inputs have shape"),
        (lambda d: [(x, np.zeros(len(y))) for x, y in d], "one class only"),
        (lambda d: [(np.full_like(d[0][0], np.inf), d[0][1]), *d[1:]], "client 0: inputs hold infinite"),
        (lambda d: [(d[0][0][:15], d[0][1]), (d[1][0], d[1][1][:15])], "client 0 has 15 inputs but 20 labels"),
        (lambda d: [(d[0][0], d[0][1][:, None]), *d[1:]], r"client 0: labels have shape \(20, 1\)"),
        (lambda d: [(d[0][0], d[0][1].astype(str)), *d[1:]], "some clients have numbers as labels, others text"),
        (lambda d: [(d[0][0], np.where(d[0][1] == 0, np.nan, 1.0)), *d[1:]], "some are missing or fractions"),
        (lambda d: [(d[0][0], np.array([None] * 20)), *d[1:]], "labels must be numbers or text"),
        (lambda d: [(d[0][0] * 1j, d[0][1]), *d[1:]], "complex"),
        (lambda d: [d[0][0], d[1][0]], r"client 0: expected \(x, y\)"),
    ],
)
def test_bad_data_is_named(change, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fedetf.run(data=change(blobs()), model=nn.Linear(5, 4), rounds=1)


def test_bad_test_labels_are_named() -> None:
    data = blobs()
    with pytest.raises(UserError, match=r"labels that no client holds: \[9\]"):
        fedetf.run(data=data, test=(data[0][0], np.full(20, 9)), model=nn.Linear(5, 4), rounds=1)


def test_bad_encoders_are_named() -> None:
    with pytest.raises(UserError, match=r"cannot take inputs of shape \(5,\)"):
        fedetf.run(data=blobs(), model=nn.Linear(6, 4), rounds=1)
    with pytest.raises(UserError, match=r"must give \[batch, features\], but gives \(2, 5, 1\)"):
        fedetf.run(data=blobs(), model=nn.Unflatten(1, (5, 1)), rounds=1)
    with pytest.raises(UserError, match="mlp"):
        fedetf.run(data=blobs(), model="resnet20", rounds=1)


def test_the_users_module_is_not_changed() -> None:
    encoder = nn.Linear(5, 4)
    before = encoder.weight.detach().clone()
    fedetf.run(data=blobs(), model=encoder, rounds=1)
    assert torch.equal(encoder.weight, before)


def test_personal_models_need_a_folder() -> None:
    result = fedetf.run(data=blobs(), model=nn.Linear(5, 4), rounds=1)
    with pytest.raises(UserError, match="kept on disk only"):
        result.model(client=0)


def test_unknown_keyword() -> None:
    with pytest.raises(UserError, match="unknown setting 'clint'"):
        fedetf.run(clint=3)


def test_arguments_that_would_be_ignored_are_refused() -> None:
    with pytest.raises(UserError, match="test belongs to data"):
        fedetf.run(test=blobs()[0])
    with pytest.raises(UserError, match="leave out: clients, alpha"):
        fedetf.run(data=blobs(), clients=17, alpha=9.0)
    with pytest.raises(UserError, match="'train' is a section; give its settings by dotted keys"):
        fedetf.run(rounds=2, settings={"train": {"epochs": 1}})
    with pytest.raises(UserError, match="is for images"):
        fedetf.run(data=blobs(), model="mlp", settings={"data.augment": "crop_flip"})


def test_own_data_takes_the_general_defaults_not_those_of_digits() -> None:
    settings = fedetf.run(data=blobs(), model=nn.Linear(5, 4), rounds=1).settings
    assert (settings.train.lr, settings.train.epochs, settings.train.batch_size) == (0.01, 3, 128)


def test_a_test_set_of_another_type_is_refused() -> None:
    pictures = np.stack(images(20))
    with pytest.raises(UserError, match=r"training inputs are .*uint8, test inputs .*float32"):
        fedetf.run(data=[(pictures, np.arange(20) % 2)], test=(pictures / 255, np.arange(20) % 2), rounds=1)


def test_bytes_in_rows_are_numbers() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (20, 6), dtype=np.uint8)
    result = fedetf.run(data=[(rows, np.arange(20) % 2)] * 2, model="mlp", rounds=1)
    assert result.job.dataset.train.x.dtype == torch.float64
    assert result.job.dataset.note.kind == "table"


def test_tensors_of_any_kind_are_taken_and_left_alone() -> None:
    x = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    y = torch.arange(20) % 2
    fedetf.run(data=[(x, y), (x.tolist(), y.tolist())], model=nn.Linear(5, 4), rounds=1)
    assert x.grad is None


@pytest.mark.parametrize("method", ["fedavg", "fedetf"])
def test_what_the_user_froze_stays_frozen(method: str, tmp_path) -> None:
    encoder = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    encoder[0].requires_grad_(False)
    result = fedetf.run(method=method, data=blobs(), model=encoder, rounds=2, out=tmp_path / "run")
    for model in (result.model(), result.model(client=1)):
        assert torch.equal(model.encoder[0].weight, encoder[0].weight)
        assert not torch.equal(model.encoder[2].weight, encoder[2].weight)


def test_a_wholly_frozen_encoder_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    encoder = Counted(5, 4).requires_grad_(False)
    result = fedetf.run(data=blobs(clients=1), model=encoder, rounds=1, epochs=50, settings={"personal.enabled": False})
    assert torch.equal(result.model().encoder.weight, encoder.weight)
    assert len(calls) < 10  # probes, features, the test set; not fifty epochs


def test_an_encoder_without_parameters_is_not_frozen() -> None:
    """Dropout acts in training, so two epochs see different features."""
    seen = []

    class Noisy(nn.Module):
        def forward(self, x):
            seen.append(self.training)
            return nn.functional.dropout(x, 0.5, self.training)

    fedetf.run(method="fedavg", data=blobs(), model=Noisy(), rounds=1, epochs=2)
    assert any(seen)


def test_an_encoder_that_works_in_place_does_not_change_the_data() -> None:
    data = blobs()
    encoder = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 4))
    result = fedetf.run(data=data, model=encoder, rounds=1)
    wanted = np.concatenate([x for x, _ in data])
    assert np.array_equal(result.job.dataset.train.x.numpy(), wanted)


def test_encoders_of_another_precision_are_named() -> None:
    class Half(nn.Linear):
        def forward(self, x):
            return super().forward(x).to(torch.bfloat16)

    with pytest.raises(UserError, match=r"the encoder gives torch.bfloat16; convert it to float32"):
        fedetf.run(data=blobs(), model=Half(5, 4), rounds=1)


def test_no_personal_model_of_a_client_that_is_not_there(tmp_path) -> None:
    result = fedetf.run(data=blobs(), model=nn.Linear(5, 4), rounds=1, out=tmp_path / "run")
    with pytest.raises(UserError, match=r"there is no personal model .*clients are 0 to 2"):
        result.model(client=9)


def test_it_runs_inside_no_grad() -> None:
    with torch.no_grad():
        fedetf.run(data=blobs(), model=nn.Linear(5, 4), rounds=1)
