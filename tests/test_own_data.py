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
        (lambda d: [(d[0][0], d[0][1][:-1]), *d[1:]], "60 inputs but 59 labels"),
        (lambda d: [(d[0][0][:, :4], d[0][1]), *d[1:]], "different shapes or types"),
        (lambda d: [(d[0][0].ravel(), d[0][1]), *d[1:]], "client 0: inputs have shape"),
        (lambda d: [(x, np.zeros(len(y))) for x, y in d], "one class only"),
        (lambda d: [(np.full_like(d[0][0], np.nan), d[0][1]), *d[1:]], "client 0: inputs hold NaN"),
    ],
)
def test_bad_data_is_named(change, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fedetf.run(data=change(blobs()), model=nn.Linear(5, 4), rounds=1)


def test_bad_test_labels_are_named() -> None:
    data = blobs()
    with pytest.raises(UserError, match=r"labels that no client holds: \{9\}"):
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
