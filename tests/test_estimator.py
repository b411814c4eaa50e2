"""FederatedClassifier: scikit-learn's own checks, what it is for, and that it is the run it stands for."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import fedetf
from fedetf import FederatedClassifier, UserError

QUICK = {"rounds": 3, "epochs": 1, "random_state": 0, "settings": {"personal.rounds": 1}}


@parametrize_with_checks([FederatedClassifier(rounds=10, random_state=0)])
@pytest.mark.filterwarnings("ignore:.*temperature beta:UserWarning")  # some checks have labels of pure noise
@pytest.mark.slow
def test_scikit_learns_own_checks(estimator: FederatedClassifier, check) -> None:
    check(estimator)


def sites_of(y: NDArray[np.int64], sites: int, alpha: float) -> NDArray[np.str_]:
    """An artificial site column: label skew by a Dirichlet draw."""
    column = np.empty(len(y), dtype="U10")
    for k, part in enumerate(fedetf.dirichlet_partition(y, sites, alpha, seed=1)):
        column[part] = f"site {k}"
    return column


def balanced(X, y):
    """As many samples of each class."""
    fewest = np.bincount(y).min()
    chosen = np.concatenate([np.flatnonzero(y == c)[:fewest] for c in np.unique(y)])
    return X[chosen], y[chosen]


@pytest.mark.slow
@pytest.mark.parametrize(("load", "sites"), [(load_digits, 5), (load_wine, 3)])
def test_beats_every_single_site_on_its_own(load, sites: int) -> None:
    X, y = load(return_X_y=True)
    X, test_X, y, test_y = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)
    test_X, test_y = balanced(test_X, test_y)
    site = sites_of(y, sites, 0.3)
    model = FederatedClassifier(random_state=0, personal=False)
    together = clone(model).fit(X, y, groups=site).score(test_X, test_y)
    for name in np.unique(site):
        mine = site == name
        assert len(np.unique(y[mine])) > 1
        assert clone(model).fit(X[mine], y[mine]).score(test_X, test_y) < together
    assert together > 0.95


@pytest.fixture(scope="module")
def wine() -> tuple[NDArray[np.float64], NDArray[np.str_], NDArray[np.str_]]:
    X, y = load_wine(return_X_y=True)
    return X, np.array(["red", "rosé", "white"])[y], sites_of(y, 3, 0.5)


@pytest.mark.parametrize("method", ["fedetf", "fedrod"])
def test_it_is_the_run_it_stands_for(method: str, wine, tmp_path: Path) -> None:
    """The same data through fedetf.run: its global and personal models, from its files, give the same answers."""
    X, y, site = wine
    model = FederatedClassifier(method=method, **QUICK).fit(X, y, groups=site)
    names = np.unique(site)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    settings = {"data.test_fraction": 0.0, "train.lr": 0.05, "train.batch_size": 32, "personal.rounds": 1}
    fedetf.run(
        data=[(X[site == name], y[site == name]) for name in names],
        test=(X, y),
        model="mlp",
        method=method,
        rounds=3,
        epochs=1,
        seed=seed,
        out=tmp_path / "run",
        settings=settings,
    )
    for client, group in [(None, None), *enumerate(names)]:
        with torch.no_grad():
            wanted = fedetf.load(tmp_path / "run", client)(torch.from_numpy(X))
        np.testing.assert_allclose(model.predict_proba(X, group), wanted, atol=1e-5)
    assert not np.allclose(model.predict_proba(X, names[0]), model.predict_proba(X, names[1]), atol=0.01)


def test_strings_clone_and_pickle(wine) -> None:
    X, y, site = wine
    model = FederatedClassifier(**QUICK).fit(X, y, groups=site)
    assert model.classes_.tolist() == ["red", "rosé", "white"]
    assert model.groups_.tolist() == ["site 0", "site 1", "site 2"]
    assert set(model.predict(X)) <= {"red", "rosé", "white"}
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X, group="site 1"), model.predict_proba(X, group="site 1"))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "classes_")
    assert np.array_equal(fresh.fit(X, y, groups=site).predict_proba(X), model.predict_proba(X))


def test_a_pickle_holds_no_training_data() -> None:
    X = np.random.default_rng(0).normal(size=(5000, 50))
    model = FederatedClassifier(rounds=1, epochs=1, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    assert len(pickle.dumps(model)) < X.nbytes / 10


def test_cross_validation_search_and_pipelines(wine) -> None:
    X, y, site = wine
    model = FederatedClassifier(**QUICK, personal=False)
    scores = cross_val_score(model, X, y, groups=site, cv=GroupKFold(3))  # here the splitter gets the groups
    assert scores.shape == (3,)
    scores = cross_val_score(model, X, y, params={"groups": site}, cv=2)  # and here fit
    assert scores.min() > 0.3
    pipeline = make_pipeline(FunctionTransformer(), model)
    pipeline.fit(X, y, federatedclassifier__groups=site)
    assert pipeline[-1].groups_.tolist() == ["site 0", "site 1", "site 2"]
    search = GridSearchCV(model, {"method": ["fedavg", "fedetf"]}, cv=2).fit(X, y)
    assert search.best_params_["method"] in ("fedavg", "fedetf")


def test_images_in_any_layout() -> None:
    digits = load_digits()
    X, y = digits.images[:200], digits.target[:200]
    options = {**QUICK, "personal": False}
    wanted = FederatedClassifier(**options).fit(X, y).predict_proba(X[:20])
    for other in (X[:, None], X[..., None]):
        model = FederatedClassifier(**options).fit(other, y)
        np.testing.assert_allclose(model.predict_proba(other[:20]), wanted, atol=1e-6)
    raw = (X * 15).astype(np.uint8)
    assert FederatedClassifier(**{**options, "rounds": 8, "epochs": 3}).fit(raw, y).score(raw, y) > 0.8
    with pytest.raises(UserError, match=r"samples of shape \(8, 4\), but those of fit had \(8, 8\)"):
        FederatedClassifier(**options).fit(X, y).predict(X[:, :, :4])


def test_scale_and_shift_of_columns_do_not_matter(wine) -> None:
    """Standardising happens inside: other units give the same model."""
    X, y, site = wine
    factors = 10.0 ** np.arange(-6, 7)
    one = FederatedClassifier(**QUICK).fit(X, y, groups=site).predict_proba(X)
    other = FederatedClassifier(**QUICK).fit(factors * X - 3, y, groups=site).predict_proba(factors * X - 3)
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_artificial_sites(wine) -> None:
    X, y, _ = wine
    with pytest.warns(UserWarning, match="redraws"):  # a hundred draws of 30 sites leave one too small
        skewed = FederatedClassifier(**QUICK, clients=30, alpha=0.05).fit(X, y)
    even, one = (FederatedClassifier(**QUICK, clients=clients).fit(X, y) for clients in (4, 1))
    probabilities = [model.predict_proba(X) for model in (skewed, even, one)]
    assert not any(np.allclose(a, b, atol=1e-3) for a, b in itertools.pairwise(probabilities))
    assert len(even.groups_) == 0


@pytest.mark.slow
def test_processes_give_the_same(wine) -> None:
    X, y, site = wine
    one, two = (FederatedClassifier(**QUICK, n_jobs=n).fit(X, y, groups=site) for n in (None, 2))
    for group in (None, "site 2"):
        assert np.array_equal(one.predict_proba(X, group), two.predict_proba(X, group))


def test_own_encoders_get_what_they_ask_for(wine) -> None:
    X, y, site = wine
    seen = []

    class Own(nn.Linear):
        def forward(self, x):
            seen.append(x.detach().abs().max().item())
            return super().forward(x)

    encoder = Own(13, 8).requires_grad_(False)
    model = FederatedClassifier(encoder=encoder, **QUICK).fit(X, y, groups=site)
    assert max(seen) < 10  # standard deviations
    assert torch.equal(model._model.encoder.weight, encoder.weight)
    seen.clear()
    encoder.preprocess = lambda x: x / 1000
    model = FederatedClassifier(encoder=encoder, **QUICK).fit(X, y, groups=site)
    model.predict(X, group="site 0")
    assert max(seen) == pytest.approx(X.max() / 1000)


def test_a_site_may_hold_one_sample(wine) -> None:
    X, y, _ = wine
    site = ["alone", *["others"] * (len(y) - 1)]
    model = FederatedClassifier(**QUICK).fit(X, y, groups=site)
    assert list(model.groups_) == ["alone", "others"]


def test_nothing_is_written(wine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X, y, site = wine
    FederatedClassifier(method="ditto", **QUICK).fit(X, y, groups=site)
    assert list(tmp_path.iterdir()) == []


def test_errors_say_what_to_do(wine) -> None:
    X, y, site = wine
    model = FederatedClassifier(method="fedproto", **QUICK).fit(X, y, groups=site)
    assert model.predict(X, group="site 0").shape == y.shape
    with pytest.raises(ValueError, match=r"fedproto has no model for all sites; predict with group="):
        model.predict(X)
    with pytest.raises(ValueError, match="'site 9': it is no site that fit saw"):
        model.predict(X, group="site 9")
    alone = FederatedClassifier(method="fedproto", **QUICK).fit(X, y)
    with pytest.raises(ValueError, match=r"fedproto has no model for all sites; fit with groups="):
        alone.predict(X)
    with pytest.raises(ValueError, match="groups name the sites; clients and alpha are for fit without groups"):
        FederatedClassifier(**QUICK, clients=3).fit(X, y, groups=site)
    with pytest.raises(ValueError, match="n_jobs = 0 has no meaning"):
        FederatedClassifier(**QUICK, n_jobs=0).fit(X, y, groups=site)
    with pytest.raises(ValueError, match="5 groups for 178 samples"):
        FederatedClassifier(**QUICK).fit(X, y, groups=site[:5])
    for nothing in (None, float("nan")):
        with pytest.raises(ValueError, match="some samples have no site"):
            FederatedClassifier(**QUICK).fit(X, y, groups=np.array([nothing, *site[1:]], dtype=object))
    without = FederatedClassifier(**QUICK, personal=False).fit(X, y, groups=site)
    with pytest.raises(ValueError, match="'site 0': fit with personal=True"):
        without.predict(X, group="site 0")
