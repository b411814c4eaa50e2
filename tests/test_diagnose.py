"""fedetf diagnose: advice against Student's t, drift against closed forms, and the command."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import images, png
from scipy import stats

import fedetf
from fedetf.cli import main
from fedetf.diagnose import Verdict, advise, diagnose, learned
from fedetf.report.diagnosis import diagnosis_sections


def test_the_interval_is_students() -> None:
    """From a printed table of the t distribution; and a one-sided t test against a gain of one point."""
    differences = [0.03, 0.05, 0.01, 0.06]
    advice = advise(differences)
    half = 3.182 * np.std(differences, ddof=1) / 2
    assert (advice.low, advice.high) == pytest.approx((0.0375 - half, 0.0375 + half), abs=1e-5)
    test = stats.ttest_1samp(differences, 0.01, alternative="greater")
    assert advice.chance == pytest.approx(1 - test.pvalue)
    assert advise([0.02] * 3).chance == pytest.approx(1)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.05, 0.06, 0.055], Verdict.HELPS),
        ([0.001, 0.002, 0.0015], Verdict.NOT_NEEDED),  # sure, but too little to matter
        ([-0.003, 0.008, -0.012], Verdict.NOT_NEEDED),
        ([-0.05, -0.06, -0.055], Verdict.WORSE),
        ([0.01, 0.04, 0.02], Verdict.MAY_HELP),
        ([0.05, 0.06, -0.22], Verdict.UNCLEAR),
        ([0.10, 0.30, 0.02], Verdict.MAY_HELP),
        ([-0.14, -0.08, -0.02], Verdict.NOT_NEEDED),
        ([0.04], Verdict.UNCLEAR),  # one seed can say nothing
    ],
)
def test_advice_follows_from_the_numbers(differences: list[float], verdict: Verdict) -> None:
    assert advise(differences).verdict is verdict


COMMON = {"data.clients": 5, "train.rounds": 1, "train.epochs": 1, "data.limit": 300, "data.test_limit": 50}


def test_drift_is_that_of_the_uploads() -> None:
    """On data that all sites share there is little drift, on one class each much."""
    even = diagnose([7], settings={**COMMON, "data.partition": "iid"})
    apart = diagnose([7], settings={**COMMON, "data.partition": "shards", "data.shards": 2})
    assert even.drift.updates > 0.3 > apart.drift.updates
    assert even.drift.classifiers > apart.drift.classifiers
    assert (even.skew.single_class, even.skew.mutual_information < 0.1) == (0, True)
    assert apart.skew.mutual_information == pytest.approx(math.log(5), abs=0.05)


def test_drift_is_the_measure_of_a_plain_run() -> None:
    found = diagnose([7], settings=COMMON)
    measured = {**COMMON, "personal.enabled": False, "measure.collapse": True}
    measures = fedetf.run(method="fedavg", seed=7, settings=measured).rounds[-1].measures
    assert found.drift.classifiers == pytest.approx(measures["classifier_consistency"])
    assert found.drift.updates == pytest.approx(measures["update_consistency"])
    advice = diagnosis_sections(replace(found, advice=advise([0.04])))[0]
    assert "from a single seed: no interval" in advice.sentences[0]


@pytest.mark.parametrize(
    ("accuracies", "samples", "above"),
    [
        ([0.30, 0.10, 0.30], 100, True),  # most seeds
        ([0.30, 0.10, 0.10], 100, False),
        ([0.30, 0.10], 100, False),  # half of them
        ([0.12], 10_000, True),  # P(X ≥ 1200) < 0.05 at 0.11
        ([0.12], 100, False),
        ([0.115], 2000, False),  # above 0.10, but not by a point
    ],
)
def test_learned_is_above_chance_by_a_point_with_most_seeds(accuracies: list[float], samples: int, above: bool) -> None:
    assert learned(accuracies, samples, 0.1) is above
    tail = stats.binom.sf(np.array(accuracies) * samples - 0.5, samples, 0.11)
    assert bool((tail < 0.05).mean() > 0.5) is above


@pytest.mark.parametrize("seeds", [1, 3])
def test_no_advice_where_nothing_was_learned(seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise([0.1, 0.11, 0.1][:seeds], has_learned=False).verdict is Verdict.DID_NOT_LEARN
    numbers = ",".join(map(str, range(7, 7 + seeds)))
    frozen = ["--rounds", "1", "--epochs", "1", "--set", "train.lr=0", "--set", "data.test_limit=100"]
    assert main(["diagnose", *frozen, "--seeds", numbers, "--clients", "3", "--set", "data.limit=100"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "No advice: the trial did not learn" in out
    assert "alone gives 10.0 %" in out
    assert "FedETF − FedAvg" not in out


SMALL = ["--rounds", "4", "--epochs", "3", "--seeds", "7,8", "--set", "data.limit=200", "--clients", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["page.html", "page.md"])
def test_the_command_prints_and_writes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *SMALL, "--alpha", "1", "--out", str(tmp_path / name)]) == 0
    out, err = capsys.readouterr()
    out, page = " ".join(out.split()), (tmp_path / name).read_text()
    for text in (
        "Advice: ",
        "95% interval over 2 seeds",
        "What kind of heterogeneity",
        "Features: no difference shown",
        "Who holds what",
        "Drift of local classifiers",
        "seed 8",
        "by exact tests",
    ):
        assert text in out
        assert text in page
    assert err.count("trial of ") == 4
    assert ("data:image/png;base64" in page) == (name == "page.html")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "page.pdf"], "--out takes a file that ends in .html or .md"),
        (["--seeds", "7,7"], "--seeds takes one or more different values"),
        (["--site-column", "hospital"], "digits has no columns"),
        (["--site-column", "hospital", "--clients", "5"], "every site of the column 'hospital' is a client"),
        (["--site-column", "hospital", "--alpha", "0.1"], "leave out alpha"),
    ],
)
def test_bad_input_is_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Bright and dark images in Parquet, from three hospitals of which each has its own mix."""
    labels = [0, 1] * 30
    sites = ["north"] * 20 + [("south", "west")[label] for label in labels[20:]]
    pictures = [image // 2 + 128 * label for image, label in zip(images(60), labels, strict=True)]
    table = {"image": [{"bytes": png(p), "path": None} for p in pictures], "label": labels, "hospital": sites}
    (tmp_path / "scans").mkdir()
    pq.write_table(pa.table(table), tmp_path / "scans" / "train.parquet")
    return tmp_path / "scans"


def test_a_column_of_sites(hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--dataset", str(hospitals), "--site-column", "hospital"]
    assert main(["diagnose", *flags, "--rounds", "1", "--epochs", "1", "--seeds", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 clients, one for each hospital" in out
    assert "2 of 3 hold a single one" in out
    assert "No advice: the trial did not learn" in out  # from a few images in one round
    result = fedetf.run(dataset=str(hospitals), site_column="hospital", rounds=1, epochs=1, out=tmp_path / "run")
    assert result.partition.sites == ["north", "south", "west"]
    counts = result.partition.counts
    assert (counts[1, 1], counts[2, 0]) == (0, 0)
    again = fedetf.resume(tmp_path / "run")
    assert again.partition.to_json() == result.partition.to_json()


@pytest.mark.parametrize(("column", "message"), [("ward", "has no column 'ward' of sites"), (None, None)])
def test_a_column_that_is_not_there(column: str | None, message: str | None, hospitals: Path) -> None:
    settings = {"dataset": str(hospitals), "site_column": column, "rounds": 1, "epochs": 1}
    if message is None:
        assert fedetf.run(**settings, clients=2, method="fedavg").partition.sites == []
    else:
        with pytest.raises(fedetf.UserError, match=message):
            fedetf.run(**settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "verdict"),
    [({"data.partition": "iid"}, Verdict.NOT_NEEDED), ({"data.alpha": 0.05}, Verdict.HELPS)],
)
def test_even_and_skewed_digits_get_different_advice(flags: dict[str, object], verdict: Verdict) -> None:
    quick = {"data.clients": 20, "model.name": "mlp", "train.lr": 0.3}
    found = diagnose([7, 8, 9], settings={**quick, **flags})
    means = {method: np.mean(values) for method, values in found.general.items()}
    assert found.advice.difference == pytest.approx(means["fedetf"] - means["fedavg"])
    assert found.advice.verdict is verdict
