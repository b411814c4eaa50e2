"""The global model on each client's own test split, against scikit-learn, on every engine."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score

import fedetf

SHORT = {"clients": 4, "alpha": 0.5, "rounds": 2, "epochs": 1, "seed": 3}
SETTINGS = {"measure.metrics": "macro_f1,balanced_accuracy", "measure.tensorboard": False}


@pytest.fixture(scope="module")
def result() -> fedetf.Result:
    return fedetf.run(method="fedetf", settings=SETTINGS, **SHORT)


def predicted(result: fedetf.Result, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return result.model()((x.float() / 255 - 0.5) / 0.5).argmax(1).numpy()


def test_each_site_has_what_scikit_learn_says(result: fedetf.Result) -> None:
    train, given = result.job.dataset.train, result.summary["per_client"]["general"]
    for k, part in enumerate(result.partition.test):
        guess, y = predicted(result, train.x[part]), train.y[part].numpy()
        assert given["accuracy"][k] == pytest.approx((guess == y).mean())
        assert given["balanced_accuracy"][k] == pytest.approx(balanced_accuracy_score(y, guess))
        assert given["macro_f1"][k] == pytest.approx(f1_score(y, guess, average="macro"))


def test_the_confusion_is_scikit_learns(result: fedetf.Result) -> None:
    test = result.job.dataset.test
    expected = confusion_matrix(test.y, predicted(result, test.x), labels=range(10))
    assert result.summary["confusion"] == expected.tolist()


def test_the_personal_ones_are_beside_it(result: fedetf.Result) -> None:
    own = result.summary["per_client"]["personal"]
    assert own["accuracy"] == result.personal_per_client
    assert np.mean(own["macro_f1"]) == pytest.approx(result.summary["metrics"]["personal"]["macro_f1"])


def test_a_method_without_a_global_model_has_none_of_it() -> None:
    summary = fedetf.run(method="fedproto", settings=SETTINGS, **SHORT).summary
    assert summary["per_client"]["general"] == {}
    assert summary["confusion"] is None
    assert len(summary["per_client"]["personal"]["accuracy"]) == 4


def test_without_a_personal_stage_the_global_model_is_tested_all_the_same(result: fedetf.Result) -> None:
    again = fedetf.run(method="fedetf", settings={**SETTINGS, "personal.enabled": False}, **SHORT).summary
    assert again["per_client"]["general"] == result.summary["per_client"]["general"]
    assert again["per_client"]["personal"] == {}


def test_worker_processes_say_the_same(result: fedetf.Result) -> None:
    again = fedetf.run(method="fedetf", settings=SETTINGS, engine="processes", workers=2, **SHORT)
    assert again.summary["per_client"] == result.summary["per_client"]
