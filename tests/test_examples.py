"""The examples run as they stand, and are as short as they claim."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["own_data.py", "own_model.py"])
def test_short_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line and not line.startswith(('"""', "#"))]
    assert len(lines) < 15
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    general, personal = (float(word.rstrip("%,")) for word in capsys.readouterr().out.split() if "%" in word)
    assert general > 80
    assert personal > 90


def test_demo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo's own code on one seed of a smaller preset: the table, both pictures and the run folders."""
    monkeypatch.chdir(tmp_path)
    preset = tmp_path / "small.toml"
    preset.write_text("[data]\nclients = 5\nlimit = 300\n[train]\nrounds = 2\nepochs = 1\n")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo

    monkeypatch.setattr(demo, "SEEDS", (7, 8))
    results = demo.all_runs(demo.Console(quiet=True), Path("out"), preset=str(preset))
    assert {method: [run.settings.seed for run in runs] for method, runs in results.items()} == {
        "fedavg": [7, 8],
        "fedetf": [7, 8],
    }
    demo.show(demo.Console(width=100), results, Path("out"))
    out = capsys.readouterr().out
    assert "FedAvg" in out
    for name in ("who-holds-what.png", "accuracy.png"):
        assert (Path("out") / name).read_bytes().startswith(b"\x89PNG")
        assert name in out
    assert (Path("out") / "fedetf-s8" / "result.json").is_file()
