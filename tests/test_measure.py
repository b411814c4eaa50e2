"""Neural-collapse and agreement measures against configurations whose values are known in closed form."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import blobs
from torch import Tensor

import fedetf
from fedetf.engines.job import preparation
from fedetf.measure import Consistency, Cosines, class_statistics, collapse
from fedetf.methods import METHODS


def measured(z: Tensor, y: Tensor, classifier: Tensor | None = None, classes: int | None = None) -> dict[str, float]:
    totals = torch.bincount(y, minlength=classes or int(y.max()) + 1)
    return collapse(class_statistics(z, y, totals), [] if classifier is None else [classifier])


def at_means(means: Tensor, per_class: int = 2) -> tuple[Tensor, Tensor]:
    """Samples that all sit at their class mean."""
    y = torch.arange(len(means)).repeat(per_class)
    return means[y], y


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


def agreement(classes: int, *clients: tuple[dict[int, list[float]], list[list[float]]]) -> dict[str, float]:
    consistency = Consistency(classes, [], {})
    for held, W in clients:
        prototypes = {"classes": torch.tensor(list(held)), "means": torch.tensor(list(held.values()))} if held else {}
        if held:
            prototypes["raw"] = 1 + prototypes["means"].abs()
        consistency.add({}, prototypes, torch.tensor(W))
    return consistency.values()


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

    def values(*trained: list[float]) -> dict[str, float]:
        consistency = Consistency(2, ["encoder.w"], received)
        for w in trained:
            consistency.add({"encoder.w": torch.tensor(w)}, {}, None)
        return consistency.values()

    opposite = values([4.0, 4.0], [2.0, 4.0])
    assert opposite["update_consistency"] == pytest.approx(-1)
    assert opposite["drift"] == pytest.approx(1 / 5)
    assert opposite["model_consistency"] == pytest.approx(24 / math.sqrt(32 * 20))
    assert values([5.0, 6.0], [4.0, 5.0])["update_consistency"] == pytest.approx(1)
    assert math.isnan(values([3.0, 4.0], [4.0, 4.0])["update_consistency"])  # one client did not move
    assert math.isnan(values([5.0, 6.0])["model_consistency"])


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
    assert -1 <= values["prototype_consistency"] <= 1
    assert -1 <= values["model_consistency"] <= 1
    assert (values.get("nc2") is None) == (not METHODS[method].has_global)
    assert (values.get("nc3_cos") is None) == (not METHODS[method].has_global)
    if method in ALIKE:
        assert values["classifier_consistency"] == pytest.approx(1, abs=1e-6)
    else:
        assert values["classifier_consistency"] < 1
    line = json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])
    assert line["measures"] == values
    vectors = fedetf.state.load_state(tmp_path / "run/classifiers.safetensors")
    assert sorted(vectors) == ["0", "1", "2"]
    assert vectors["0"].shape[0] == 3


def test_the_recorded_values_are_those_of_the_saved_model(tmp_path) -> None:
    result = fedetf.run(method="fedetf", data=blobs(), model="mlp", rounds=2, epochs=1, settings=MEASURED)
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
