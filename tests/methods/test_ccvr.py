"""CCVR: pooled Gaussians against the pooled features themselves."""

import numpy as np
import pytest
import torch

import fedetf
from fedetf.methods import METHODS
from fedetf.methods.ccvr import PooledGaussians, _covariance

pytestmark = pytest.mark.slow

OPTIONS = {"method": "ccvr", "clients": 4, "alpha": 0.3, "rounds": 2, "epochs": 1}


def summary(features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    classes = labels.unique()
    groups = [features[labels == c] for c in classes]
    return {
        "classes": classes,
        "counts": torch.tensor([len(h) for h in groups]),
        "means": torch.stack([h.mean(0) for h in groups]),
        "covariances": torch.stack([_covariance(h) for h in groups]),
    }


def test_pooled_moments_are_those_of_the_pooled_features() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(50, 3, (90, 4)), rng.integers(0, 3, 90)
    owner = rng.integers(0, 4, 90)
    pooled = PooledGaussians()
    for k in range(4):
        pooled.add(summary(torch.tensor(x[owner == k]), torch.tensor(y[owner == k])))
    pooled.add({})  # a client that holds nothing
    for c in range(3):
        np.testing.assert_allclose(pooled.means[c], x[y == c].mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(pooled.covariance(c), np.cov(x[y == c].T), atol=1e-10)
        assert pooled.counts[c] == (y == c).sum()


def test_by_hand() -> None:
    """A holds {0, 2}, B holds {5}: mean 7/3, variance 19/3. (Biased local covariances would give 5.83.)"""
    pooled = PooledGaussians()
    for values in ([0.0, 2.0], [5.0]):
        h = torch.tensor(values, dtype=torch.float64)[:, None]
        pooled.add(summary(h, torch.zeros(len(h), dtype=torch.int64)))
    assert pooled.means[0].item() == pytest.approx(7 / 3)
    assert pooled.covariance(0).item() == pytest.approx(19 / 3)


def test_a_class_of_one_sample_is_a_point() -> None:
    pooled = PooledGaussians()
    pooled.add(summary(torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([3])))
    x, y = pooled.draw(5, torch.Generator().manual_seed(0))
    assert y.tolist() == [3] * 5
    torch.testing.assert_close(x, torch.tensor([[1.0, 2.0]] * 5, dtype=torch.float64))


def test_virtual_features_have_the_moments_they_were_drawn_from() -> None:
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.normal(size=(40, 3)) @ rng.normal(size=(3, 3)) + 7)
    pooled = PooledGaussians()
    pooled.add(summary(x, torch.zeros(40, dtype=torch.int64)))
    drawn, _ = pooled.draw(200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), x.mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(torch.cov(drawn.T), torch.cov(x.T), atol=0.1, rtol=0.05)


def test_calibration_moves_the_head_only_and_general_is_the_calibrated_one() -> None:
    plain = fedetf.run(**{**OPTIONS, "method": "fedavg"}, settings={"data.limit": 300})
    result = fedetf.run(**OPTIONS, settings={"data.limit": 300})
    before, after = plain.model().state_dict(), result.model().state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert [r.general for r in result.rounds] == [r.general for r in plain.rounds]
    test = result.job.dataset.test
    with torch.no_grad():
        logits = result.model()((test.x.float() / 255 - 0.5) / 0.5)
    assert result.general == (logits.argmax(1) == test.y).double().mean().item()
    assert result.summary["bytes_up"] > plain.summary["bytes_up"]


def test_no_epochs_of_calibration_is_fedavg() -> None:
    options = {"data.limit": 150}
    plain = fedetf.run(**{**OPTIONS, "method": "fedavg"}, settings=options).model().state_dict()
    result = fedetf.run(**OPTIONS, settings={**options, "method.epochs": 0}).model().state_dict()
    assert all(torch.equal(plain[name], result[name]) for name in plain)


def test_a_class_that_nobody_holds_is_said() -> None:
    server = fedetf.methods.Server({"head.weight": torch.zeros(3, 2), "head.bias": torch.zeros(3)}, clients=1)
    known = summary(torch.randn(6, 2, dtype=torch.float64), torch.tensor([0, 0, 0, 2, 2, 2]))
    with pytest.warns(UserWarning, match=r"nobody holds the classes \[1\]"):
        METHODS["ccvr"](epochs=1).finish(server, [known])
