"""``fedetf demo`` on two seeds of a smaller preset: the table, both pictures, the page and the run folders."""

from pathlib import Path

import pytest

from fedetf.cli import demo, main
from fedetf.runs.read import read_run

SMALL = "[data]\nclients = 5\nalpha = 0.02\n[train]\nrounds = 2\nepochs = 1\n[personal]\nrounds = 1\n"


@pytest.mark.slow
def test_demo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    monkeypatch.setattr(demo, "PRESET", "small.toml")
    monkeypatch.setattr(demo, "SEEDS", (7, 8))
    assert main(["demo", "--out", "out"]) == 0
    out = capsys.readouterr().out
    for method, name in (("fedavg", "FedAvg"), ("fedetf", "FedETF")):
        general = [read_run(Path(f"out/{method}-s{seed}")).result.general_last5 for seed in (7, 8)]
        mean, each = f"{50 * sum(general):.1f}", ", ".join(f"{100 * value:.0f}" for value in general)
        (line,) = [line for line in out.splitlines() if line.startswith(name)]
        assert f"{mean}   ({each})" in line
    for name in ("who-holds-what.png", "accuracy.png"):
        assert Path("out", name).read_bytes().startswith(b"\x89PNG")
        assert f"picture: out/{name}" in out
    assert "page:    out/report.html" in out
    assert Path("out/report.html").is_file()
