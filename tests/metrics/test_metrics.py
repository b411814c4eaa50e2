"""Metrics against scikit-learn, and against configurations whose values are known in closed form."""

import json
import math
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import blobs
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    log_loss,
    multilabel_confusion_matrix,
    recall_score,
    roc_auc_score,
)
from torch import Tensor

import fedetf
from fedetf.engines.job import preparation
from fedetf.errors import RunError, UserError
from fedetf.methods import METHODS
from fedetf.metrics import (
    METRICS,
    QUANTITIES,
    Consistency,
    Cosines,
    Metric,
    Participant,
    Predictions,
    Suite,
    class_statistics,
    collapse,
    find_metric,
    make_suite,
    recall_per_class,
    sums_of,
)


def measured(z: Tensor, y: Tensor, classifier: Tensor | None = None, classes: int | None = None) -> dict[str, float]:
    totals = torch.bincount(y, minlength=classes or int(y.max()) + 1)
    return collapse(class_statistics(z, y, totals), [] if classifier is None else [classifier])


def at_means(means: Tensor, per_class: int = 2) -> tuple[Tensor, Tensor]:
    """Samples that all sit at their class mean."""
    y = torch.arange(len(means)).repeat(per_class)
    return means[y], y


# --- the interface ----------------------------------------------------------------------------------------------------

SCORES = torch.randn(60, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
LABELS = torch.tensor([0, 1, 1, 3] * 15)  # none of class 2
PARTS = [(0, 1), (1, 1), (1, 30), (30, 47), (47, 60)]  # uneven, and one of them empty


def predictions(rows: slice = slice(None)) -> Predictions:
    """Random predictions, all or some."""
    return Predictions(SCORES[rows], LABELS[rows], SCORES[rows], torch.bincount(LABELS, minlength=4))


def from_parts(suite: Suite) -> dict[str, Tensor]:
    return reduce(suite.merge, [suite.part(predictions(slice(a, b))) for a, b in PARTS])


def expected_calibration_error(y: np.ndarray, p: np.ndarray) -> float:
    """By scikit-learn's bins of confidence: [0, 1/15], (1/15, 2/15], …"""
    right, confidence = p.argmax(1) == y, p.max(1)
    accuracies, confidences = calibration_curve(right, confidence, n_bins=15)
    sizes = np.bincount(np.digitize(confidence, np.linspace(0, 1, 16)[1:-1], right=True), minlength=15)
    return float((sizes[sizes > 0] * np.abs(accuracies - confidences)).sum() / len(y))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_every_metric_of_predictions_is_scikit_learns(classes: int, ties: bool) -> None:
    rng = np.random.default_rng(classes)
    logits, y = torch.from_numpy(rng.normal(size=(203, classes))), torch.from_numpy(rng.integers(classes, size=203))
    logits = torch.log(logits.exp().mul(4).ceil()) if ties else logits
    names = ["macro_f1", "sensitivity", "specificity", "auroc", "average_precision", "log_loss", "brier", "ece"]
    suite, totals = make_suite(names), torch.bincount(y, minlength=classes)
    cuts = [(0, 2), (2, 2), (2, 150), (150, 203)]
    parts = [suite.part(Predictions(logits[a:b], y[a:b], logits[a:b], totals)) for a, b in cuts]
    found = suite.values(reduce(suite.merge, parts))
    p, answers, truth = logits.softmax(1).numpy(), logits.argmax(1).numpy(), y.numpy()
    tn, fp, *_ = multilabel_confusion_matrix(truth, answers).reshape(-1, 4).T
    two, one_hot = classes == 2, np.eye(classes)[truth]
    binary = {"sensitivity": recall_score(truth, answers, average=None)[-1], "specificity": (tn / (tn + fp))[-1]}
    mean = {"sensitivity": recall_score(truth, answers, average="macro"), "specificity": (tn / (tn + fp)).mean()}
    assert found == pytest.approx(
        {
            "accuracy": accuracy_score(truth, answers),
            "macro_f1": f1_score(truth, answers, average="macro"),
            **(binary if two else mean),
            "auroc": roc_auc_score(truth, p[:, 1] if two else p, multi_class="ovr"),
            "average_precision": average_precision_score(truth if two else one_hot, p[:, 1] if two else p),
            "log_loss": log_loss(truth, p),
            "brier": brier_score_loss(truth, p[:, 1] if two else p),
            "ece": expected_calibration_error(truth, p),
        },
        abs=1e-9,
    )


@pytest.mark.parametrize(
    ("labels", "undefined"),
    [
        ([0, 0, 0], {"sensitivity", "auroc", "average_precision"}),
        ([1, 1, 1], {"specificity", "auroc"}),
        ([0, 1, 1], set()),
    ],
)
def test_a_class_that_is_missing_leaves_undefined_what_rests_on_it(labels: list[int], undefined: set[str]) -> None:
    y, logits = torch.tensor(labels), torch.tensor([[2.0, 1.0], [0.0, 1.0], [0.5, 1.0]])
    suite = make_suite(METRICS).personal
    found = suite.values(suite.part(Predictions(logits, y, logits, torch.bincount(y, minlength=2))))
    assert {name for name, value in found.items() if value is None} == undefined


def test_of_several_classes_those_that_occur_count() -> None:
    """As if the missing class did not exist, but for the probability that goes to it."""
    suite = make_suite(["auroc", "average_precision", "sensitivity", "specificity"])
    found, p, y = suite.values(from_parts(suite)), SCORES.softmax(1).numpy(), LABELS.numpy()
    present = [0, 1, 3]
    assert found["auroc"] == pytest.approx(np.mean([roc_auc_score(y == c, p[:, c]) for c in present]))
    precisions = [average_precision_score(y == c, p[:, c]) for c in present]
    assert found["average_precision"] == pytest.approx(np.mean(precisions))
    answers = SCORES.argmax(1).numpy()
    assert found["sensitivity"] == pytest.approx(np.mean([(answers[y == c] == c).mean() for c in present]))
    assert found["specificity"] == pytest.approx(np.mean([(answers[y != c] != c).mean() for c in present]))


def test_metrics_that_rest_on_the_same_sums_share_them() -> None:
    suite = make_suite(["macro_f1", "sensitivity", "auroc", "average_precision"])
    assert sorted(suite.part(predictions())) == ["accuracy.confusion", "auroc.p", "auroc.y"]


def test_each_metric_is_scikit_learns_merged_from_uneven_parts() -> None:
    suite = make_suite(["log_loss", "balanced_accuracy", "macro_f1", "brier", "ece"])
    sums = from_parts(suite)
    predicted, p, y = SCORES.argmax(1).numpy(), SCORES.softmax(1).numpy(), LABELS.numpy()
    recall = recall_score(y, predicted, labels=range(4), average=None, zero_division=0.0)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        balanced = balanced_accuracy_score(y, predicted)
    assert suite.values(sums) == pytest.approx(
        {
            "accuracy": accuracy_score(y, predicted),
            "log_loss": log_loss(y, p, labels=range(4)),
            "balanced_accuracy": balanced,
            "macro_f1": f1_score(y, predicted, average="macro"),
            "brier": brier_score_loss(y, p, labels=range(4)),
            "ece": expected_calibration_error(y, p),
        },
        abs=1e-12,
    )
    confusion = confusion_matrix(y, predicted, labels=range(4)).tolist()
    assert sums_of(METRICS["accuracy"], sums)["confusion"].tolist() == confusion
    assert recall_per_class(sums_of(METRICS["accuracy"], sums)) == pytest.approx(
        [recall[0], recall[1], None, recall[3]]
    )


def test_without_a_sample_there_is_no_value() -> None:
    suite = make_suite(METRICS)
    values = suite.values(suite.part(predictions(slice(0, 0))))
    assert [values[name] for name in ("accuracy", "balanced_accuracy", "log_loss", "nc2")] == [None] * 4
    assert suite.values({}) == {}


class Ranking(Metric):
    """The area under the ROC curve of class 0, which needs every score."""

    title: ClassVar = "AUROC of the first class"
    concatenated: ClassVar = frozenset({"scores", "first"})

    def part(self, seen: Predictions) -> dict[str, Tensor]:
        return {"scores": seen.logits[:, 0], "first": seen.y == 0, "count": torch.tensor(len(seen.y))}

    def value(self, sums: dict[str, Tensor]) -> dict[str, float | None]:
        assert sums["count"] == len(sums["scores"])
        return {self.name: float(roc_auc_score(sums["first"].numpy(), sums["scores"].numpy()))}


def test_parts_of_a_metric_may_be_joined_instead_of_added() -> None:
    suite = Suite((Ranking(),))
    expected = roc_auc_score(LABELS.numpy() == 0, SCORES[:, 0].numpy())
    assert suite.values(from_parts(suite)) == {"ranking": pytest.approx(expected)}


def test_what_a_metric_gives_is_what_it_names() -> None:
    for metric in METRICS.values():
        names = [quantity.name for quantity in metric.quantities()]
        clients = [Participant(4, {}, {}, {}, None)] if metric is Consistency else []
        parts = [metric().part(predictions()), *map(metric().client_part, clients)]
        assert sorted(metric().value(reduce(metric().merge, parts))) == sorted(names)
    assert len({quantity.name for quantity in QUANTITIES}) == len(QUANTITIES)
    (accuracy,) = METRICS["accuracy"].quantities()
    assert accuracy.caption == "The share of samples that are classified right. Higher is better."


def test_metrics_that_cannot_be_used() -> None:
    class Twin(Ranking):
        name = "accuracy"

    class Unnamed(Ranking):
        def value(self, sums: dict[str, Tensor]) -> dict[str, float | None]:
            return {"other": 1.0}

    class Broken(Ranking):
        def value(self, sums: dict[str, Tensor]) -> dict[str, float | None]:
            raise KeyError("nowhere")

    with pytest.raises(UserError, match="two metrics give 'accuracy'"):
        Suite((METRICS["accuracy"](), Twin()))
    with pytest.raises(RunError, match="gives 'other'"):
        Suite((Unnamed(),)).values(from_parts(Suite((Unnamed(),))))
    with pytest.raises(RunError, match="metric 'broken': KeyError"):
        Suite((Broken(),)).values(from_parts(Suite((Broken(),))))
    with pytest.raises(UserError, match=r"unknown metric 'acuracy'; did you mean 'accuracy'\?"):
        find_metric("acuracy")
    with pytest.raises(UserError, match=r"is not a subclass of fedetf\.metrics\.Metric"):
        find_metric("json:JSONDecoder")


# --- neural collapse --------------------------------------------------------------------------------------------------


def test_nc1_of_two_classes_on_a_line() -> None:
    values = measured(torch.tensor([[0.0], [2.0], [6.0], [8.0]]), torch.tensor([0, 0, 1, 1]))
    assert values["nc1_trace"] == pytest.approx(1.0)
    assert values["nc1_ratio"] == pytest.approx(1 / 9)
    assert values["nc1_pinv"] == pytest.approx(1 / 18)


def test_nc1_against_numpy_on_random_features() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat_interleave(torch.tensor([5, 9, 2, 30]))  # unequal classes count the same
    z = torch.randn(len(y), 3, generator=generator) + 2 * torch.randn(4, 3, generator=generator)[y]
    groups = [z[y == c].double().numpy() for c in range(4)]
    within = np.mean([np.cov(g.T, bias=True) for g in groups], axis=0)
    between = np.cov(np.stack([g.mean(axis=0) for g in groups]).T, bias=True)
    values = measured(z, y)
    assert values["nc1_trace"] == pytest.approx(np.trace(within))
    assert values["nc1_ratio"] == pytest.approx(np.trace(within) / np.trace(between))
    assert values["nc1_pinv"] == pytest.approx(np.trace(within @ np.linalg.pinv(between)) / 4)
    cosines = [g @ g.mean(axis=0) / np.linalg.norm(g, axis=1) / np.linalg.norm(g.mean(axis=0)) for g in groups]
    assert values["nc1_cos"] == pytest.approx(np.concatenate(cosines).mean())


def test_nc1_pinv_is_invariant_under_invertible_maps_when_the_means_span_the_space() -> None:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(4).repeat(10)
    z = torch.randn(40, 3, generator=generator, dtype=torch.float64) + torch.eye(4, 3, dtype=torch.float64)[y]
    map = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    before, after = measured(z, y), measured(z @ map, y)
    assert after["nc1_pinv"] == pytest.approx(before["nc1_pinv"])
    assert after["nc1_ratio"] != pytest.approx(before["nc1_ratio"], rel=0.01)


def test_parts_add_up_to_the_whole() -> None:
    generator = torch.Generator().manual_seed(2)
    z, y = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    totals = torch.bincount(y)
    parts = [class_statistics(z[a:b], y[a:b], totals) for a, b in ((0, 7), (7, 20), (20, 30))]
    sums = {name: parts[0][name] + parts[1][name] + parts[2][name] for name in parts[0]}
    whole = class_statistics(z, y, totals)
    assert all(torch.allclose(sums[name], whole[name]) for name in whole)


@pytest.mark.parametrize("move", ["as it is", "turned", "shifted and scaled"])
def test_an_exact_etf_has_no_nc2_error(move: str) -> None:
    means = fedetf.simplex_etf(10, 12, seed=3).T.double()
    if move == "turned":
        means = means @ torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q
    elif move == "shifted and scaled":
        means = 7 * means + torch.arange(12)
    values = measured(*at_means(means))
    assert values["nc2"] == pytest.approx(0, abs=1e-10)
    assert values["nc2_norm"] == pytest.approx(0, abs=1e-6)
    assert values["nc1_trace"] == pytest.approx(0, abs=1e-9)


def test_nc2_of_known_directions() -> None:
    basis = measured(*at_means(torch.eye(3)))
    assert basis["nc2"] == pytest.approx(0, abs=1e-12)
    assert basis["nc2_uncentred"] == pytest.approx(0.25)
    means = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert measured(*at_means(means))["nc2"] == pytest.approx(0.0525148, abs=1e-6)


def test_features_without_a_direction_do_not_count_in_cosines() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert measured(z, torch.tensor([0, 0, 1, 1]))["nc1_cos"] == pytest.approx(1)


def test_nc3_of_an_aligned_and_of_a_flipped_classifier() -> None:
    V = fedetf.simplex_etf(5, 5, seed=0).T.double()
    samples = at_means(5 * V + 2)
    aligned, flipped = measured(*samples, V), measured(*samples, -V)
    assert (aligned["nc3_cos"], aligned["nc3_dual"]) == pytest.approx((1, 0), abs=1e-6)
    assert (flipped["nc3_cos"], flipped["nc3_dual"]) == pytest.approx((-1, 4), abs=1e-6)
    assert measured(*samples, V + 100)["nc3_cos"] == pytest.approx(1, abs=1e-6)  # a softmax sees no difference


def test_missing_classes_are_left_out_and_empty_definitions_are_nan() -> None:
    V = fedetf.simplex_etf(3, 3, seed=0).T
    z, y = at_means(V)
    some = measured(z, y, torch.cat([V, torch.ones(2, 3)]), classes=5)
    assert some["nc2"] == pytest.approx(0, abs=1e-10)
    by_hand = torch.cosine_similarity(V, V - 0.4).mean()  # centred over all five rows
    assert some["nc3_cos"] == pytest.approx(float(by_hand))
    one = measured(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 1]), classes=3)
    assert math.isnan(one["nc2"])
    assert math.isnan(one["nc1_ratio"])
    assert one["nc1_trace"] == pytest.approx(2)
    singletons = measured(torch.eye(3), torch.arange(3))
    assert math.isnan(singletons["nc1_trace"])
    same = measured(torch.tensor([[1.0], [3.0], [1.0], [3.0]]), torch.tensor([0, 0, 1, 1]))  # equal means, some spread
    assert same["nc1_ratio"] == math.inf
    assert math.isnan(measured(z, y)["nc3_cos"])
    none = measured(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), classes=2)
    assert [none.pop(name) for name in ("nc_classes", "nc_singletons", "nc2_classes")] == [0, 0, 0]
    assert all(math.isnan(value) for value in none.values())
    assert (some["nc_classes"], one["nc_classes"]) == (3, 1)
    assert (some["nc_singletons"], singletons["nc_singletons"]) == (0, 3)


def test_nc2_says_how_many_class_means_it_compares() -> None:
    values = measured(*at_means(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])))  # the third is the centre
    assert (values["nc_classes"], values["nc2_classes"]) == (3, 2)
    assert values["nc2"] == pytest.approx(0)  # of two classes, whatever they are


def test_nc3_of_private_heads_is_their_mean() -> None:
    V = fedetf.simplex_etf(5, 5, seed=0).T.double()
    z, y = at_means(5 * V)
    statistics = class_statistics(z, y, torch.bincount(y).double())
    assert collapse(statistics, [V, V, -V])["nc3_cos"] == pytest.approx(1 / 3)


# --- agreement --------------------------------------------------------------------------------------------------------


def test_mean_cosine_of_pairs() -> None:
    def mean(*vectors: list[float]) -> float:
        cosines = Cosines(rows=1)
        for vector in vectors:
            cosines.add(torch.tensor([vector]))
        return cosines.mean()

    assert mean([1, 2.0], [2, 4.0]) == pytest.approx(1)
    assert mean([1, 2.0], [-2, -4.0]) == pytest.approx(-1)
    assert mean([1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]) == pytest.approx(0)
    assert mean(*fedetf.simplex_etf(5, 5, seed=0).T.tolist()) == pytest.approx(-1 / 4)
    assert math.isnan(mean([1.0, 0.0]))
    assert math.isnan(mean([1.0, 0.0], [0.0, 0.0]))  # a vector without a direction is left out


def consistency_of(clients: Iterable[Participant]) -> dict[str, float | None]:
    metric = Consistency()
    return metric.value(reduce(metric.merge, map(metric.client_part, clients)))


def agreement(classes: int, *clients: tuple[dict[int, list[float]], list[list[float]]]) -> dict[str, float | None]:
    seen = []
    for held, W in clients:
        prototypes = {"classes": torch.tensor(list(held)), "means": torch.tensor(list(held.values()))} if held else {}
        if held:
            prototypes["raw"] = 1 + prototypes["means"].abs()
        seen.append(Participant(classes, {}, {}, prototypes, torch.tensor(W)))
    return consistency_of(seen)


def test_prototypes_are_compared_over_those_who_hold_the_class() -> None:
    W = [[1.0, 0.0], [0.0, 1.0]]
    values = agreement(2, ({0: [1.0, 0.0]}, W), ({0: [0.0, 1.0], 1: [5.0, 5.0]}, W), ({}, W))
    assert values["prototype_consistency"] == pytest.approx(0)
    assert values["prototype_classes"] == 1
    same = agreement(2, ({0: [1.0, 1.0], 1: [1.0, 0.0]}, W), ({0: [2.0, 2.0], 1: [3.0, 0.0]}, W))
    assert same["prototype_consistency"] == pytest.approx(1)
    assert same["prototype_consistency_raw"] == pytest.approx((1 + 9 / math.sqrt(5 * 17)) / 2)  # (2,1) and (4,1)


def test_centring_takes_away_what_all_classes_of_a_client_share() -> None:
    W = [[1.0, 0.0], [0.0, 1.0]]
    shifted = agreement(2, ({0: [11.0, 10.0], 1: [10.0, 11.0]}, W), ({0: [10.0, 11.0], 1: [11.0, 10.0]}, W))
    assert shifted["prototype_consistency"] > 0.99
    assert shifted["prototype_consistency_centred"] == pytest.approx(-1)
    one_class = agreement(2, ({0: [1.0, 0.0]}, W), ({0: [1.0, 0.0]}, W))
    assert math.isnan(one_class["prototype_consistency_centred"])
    assert math.isnan(agreement(2, ({0: [1.0, 0.0]}, W), ({1: [1.0, 0.0]}, W))["prototype_consistency"])


def test_classifiers_are_compared_class_by_class_and_as_a_whole() -> None:
    eye = [[1.0, 0.0], [0.0, 1.0]]
    values = agreement(2, ({}, eye), ({}, [[1.0, 0.0], [1.0, 0.0]]))
    assert (values["classifier_consistency"], values["classifier_consistency_flat"]) == pytest.approx((0.5, 0.5))
    values = agreement(2, ({}, eye), ({}, [[2.0, 0.0], [0.0, 1.0]]))
    assert values["classifier_consistency"] == pytest.approx(1)
    assert values["classifier_consistency_flat"] == pytest.approx(0.948683, abs=1e-6)


def test_models_and_updates() -> None:
    received = {"encoder.w": torch.tensor([3.0, 4.0])}

    def values(*trained: list[float]) -> dict[str, float | None]:
        return consistency_of(Participant(2, {"encoder.w": torch.tensor(w)}, received, {}, None) for w in trained)

    opposite = values([4.0, 4.0], [2.0, 4.0])
    assert opposite["update_consistency"] == pytest.approx(-1)
    assert opposite["drift"] == pytest.approx(1 / 5)
    assert opposite["model_consistency"] == pytest.approx(24 / math.sqrt(32 * 20))
    assert values([5.0, 6.0], [4.0, 5.0])["update_consistency"] == pytest.approx(1)
    assert math.isnan(values([3.0, 4.0], [4.0, 4.0])["update_consistency"])  # one client did not move
    assert math.isnan(values([5.0, 6.0])["model_consistency"])
    private = consistency_of(Participant(2, {"encoder.w": torch.tensor([1.0, w])}, {}, {}, None) for w in (0.0, 1.0))
    assert private["model_consistency"] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(private["drift"])


# --- in a run ---------------------------------------------------------------------------------------------------------

MEASURED = {"measure.collapse": True, "personal.enabled": False, "train.lr": 0.05}
ALIKE = ("fedetf", "fednh", "fedbabu", "spherefed", "fedgela", "feddrplus")  # clients' class vectors, in every round


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_measured_and_trains_as_without(method: str, tmp_path) -> None:
    options = {"method": method, "data": blobs(), "model": "mlp", "rounds": 2, "epochs": 1}
    measured = fedetf.run(settings=MEASURED, out=tmp_path / "run", **options)
    plain = fedetf.run(settings={**MEASURED, "measure.collapse": False}, **options)
    assert all(torch.equal(t, plain.outcome.model[name]) for name, t in measured.outcome.model.items())
    assert measured.rounds[-1].general == plain.rounds[-1].general
    assert plain.rounds[-1].measures == {}
    values = measured.rounds[-1].measures
    kind = METHODS[method]
    assert (values.get("nc2") is None) == (not kind.has_global and not kind.measures_clients)
    assert (values.get("nc3_cos") is None) == (not kind.has_global and not kind.measures_clients)
    if kind.pools:
        assert values["model_consistency"] is None  # one client agrees with nobody
        return
    assert -1 <= values["prototype_consistency"] <= 1
    assert -1 <= values["model_consistency"] <= 1
    if method in ALIKE:
        assert values["classifier_consistency"] == pytest.approx(1, abs=1e-6)
    else:
        assert values["classifier_consistency"] < 1
    line = json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])
    assert line["measures"] == values
    vectors = fedetf.core.state.load_state(tmp_path / "run/classifiers.safetensors")
    assert sorted(vectors) == ["0", "1", "2"]
    assert vectors["0"].shape[0] == 3


def test_the_recorded_values_are_those_of_the_saved_model(tmp_path) -> None:
    settings = {**MEASURED, "data.normalize": "none"}
    result = fedetf.run(method="fedetf", data=blobs(), model="mlp", rounds=2, epochs=1, settings=settings)
    net, test = result.model(), result.job.dataset.test
    with torch.no_grad():
        prepare = preparation(result.settings, net.encoder, result.job.dataset.shape, torch.device("cpu"))
        mu = net.head.embed(net.encoder(prepare(test.x)))
    by_hand = measured(mu, test.y, net.head.V.T)
    for name, value in by_hand.items():
        assert result.rounds[-1].measures[name] == pytest.approx(value, rel=1e-5)


def test_rounds_that_are_not_due_are_not_measured() -> None:
    result = fedetf.run(
        method="fedavg", data=blobs(), model="mlp", rounds=8, epochs=1, settings={**MEASURED, "measure.every": 3}
    )
    assert [bool(r.measures) for r in result.rounds] == [False, False, True, True, True, True, True, True]


@pytest.mark.slow
def test_worker_processes_measure_the_same() -> None:
    options = {"method": "fedetf", "rounds": 2, "epochs": 1, "clients": 4, "settings": MEASURED}
    one = fedetf.run(engine="serial", **options)
    two = fedetf.run(engine="processes", workers=2, **options)
    assert [r.measures for r in one.rounds] == [r.measures for r in two.rounds]


CHOSEN = {"measure.metrics": ["log_loss", "balanced_accuracy"], "train.lr": 0.05, "data.limit": 300}


def test_chosen_metrics_are_those_of_the_saved_models(tmp_path: Path) -> None:
    options = {"method": "fedetf", "clients": 3, "rounds": 2, "epochs": 1, "settings": CHOSEN}
    result = fedetf.run(out=tmp_path / "run", **options)
    written = json.loads((tmp_path / "run/result.json").read_text())
    data, prepare = (
        result.job.dataset,
        preparation(result.settings, torch.nn.Identity(), (1, 8, 8), torch.device("cpu")),
    )

    def by_sklearn(net: torch.nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
        with torch.no_grad():
            logits = net(prepare(x)).double()
        recalls = [(logits.argmax(1)[y == c] == c).double().mean() for c in y.unique()]
        loss = log_loss(y.numpy(), logits.softmax(1).numpy(), labels=range(10))
        accuracy = accuracy_score(y.numpy(), logits.argmax(1).numpy())
        return {"accuracy": accuracy, "log_loss": loss, "balanced_accuracy": float(torch.stack(recalls).mean())}

    general = by_sklearn(result.model(), data.test.x, data.test.y)
    assert written["metrics"]["general"] == pytest.approx(general, abs=1e-6)
    assert (written["general"], written["personal"]) == (
        written["metrics"]["general"]["accuracy"],
        written["metrics"]["personal"]["accuracy"],
    )
    splits = [torch.as_tensor(part) for part in result.partition.test]
    own = [by_sklearn(result.model(k), data.train.x[rows], data.train.y[rows]) for k, rows in enumerate(splits)]
    mean = {name: sum(values[name] for values in own) / 3 for name in general}
    assert written["metrics"]["personal"] == pytest.approx(mean, abs=1e-6)
    assert np.mean(written["recall_per_class"]) == pytest.approx(general["balanced_accuracy"])
    last = json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])
    assert last["measures"] == {name: written["metrics"]["general"][name] for name in ("log_loss", "balanced_accuracy")}


def test_without_a_global_model_its_metrics_are_null() -> None:
    summary = fedetf.run(
        method="fedproto", data=blobs(), model="mlp", rounds=1, epochs=1, settings={"measure.metrics": "log_loss"}
    ).summary
    assert summary["metrics"]["general"] == {"accuracy": None, "log_loss": None}
    assert summary["metrics"]["personal"]["log_loss"] > 0
    assert summary["recall_per_class"] is None


def test_a_finished_head_is_measured_again() -> None:
    """CCVR calibrates its head after the last round: the result is that of the calibrated one."""
    options = {"method": "ccvr", "data": blobs(), "model": "mlp", "rounds": 1, "epochs": 1}
    result = fedetf.run(settings={**MEASURED, "measure.metrics": ["log_loss"]}, **options)
    general, last = result.summary["metrics"]["general"], result.rounds[-1]
    assert general["accuracy"] == result.general
    assert general["log_loss"] != last.measures["log_loss"]
    assert (general["nc3_cos"] != last.measures["nc3_cos"], general["nc2"] == last.measures["nc2"]) == (True, True)
    assert general["drift"] == last.measures["drift"]


OWN = """
import torch

from fedetf.metrics import Metric


class Confidence(Metric):
    title = "Mean confidence"

    def part(self, seen):
        return {"sum": seen.logits.softmax(1).amax(1).sum(), "count": torch.tensor(len(seen.y))}

    def value(self, sums):
        return {self.name: float(sums["sum"] / sums["count"])}
"""


@pytest.mark.slow
def test_a_metric_of_ones_own_on_worker_processes_and_after_a_resume(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    settings = {**CHOSEN, "measure.metrics": f"{tmp_path / 'mine.py'}:Confidence,log_loss"}
    options = {"method": "fedetf", "clients": 3, "rounds": 2, "epochs": 1, "settings": settings}
    one = fedetf.run(engine="serial", out=tmp_path / "one", **options)
    two = fedetf.run(engine="processes", workers=2, out=tmp_path / "two", **options)
    assert 0.1 < one.summary["metrics"]["personal"]["confidence"] <= 1
    assert one.summary["metrics"] == two.summary["metrics"]
    (tmp_path / "one/result.json").unlink()
    (tmp_path / "one/personal/1.safetensors").unlink()
    with pytest.raises(UserError, match=r"measure\.metrics = .*Confidence.*--trust-code"):
        fedetf.resume(tmp_path / "one")
    again = fedetf.resume(tmp_path / "one", trust_code=True)
    assert {**again.summary, "images_per_second": 0} == {**one.summary, "images_per_second": 0}
