"""fedetf flower check: what it says of a site's data, and that it passes what a round would take."""

import logging
import wave
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import images
from PIL import Image
from sites import Wire, make_app

from fedetf.cli import main
from fedetf.errors import StepError, UserError
from fedetf.flower.server import LOG


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Of cats and dogs, in grey, 8×8."""
    return agreed(make_app(tmp_path / "app"), "1x8x8")


def agreed(app: Path, shape: str) -> Path:
    path = app / "pyproject.toml"
    text = path.read_text().replace('"0, 1, 2, 3, 4, 5, 6, 7, 8, 9"', '"cat, dog, emu"')
    path.write_text(text.replace('shape = "1x8x8"', f'shape = "{shape}"').replace('test = "digits"', 'test = ""'))
    return app


def pictures(folder: Path, counts: dict[str, int], side: int = 8) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for k, pixels in enumerate(images(count, (side, side))):
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder


def check(*arguments: object) -> int:
    return main(["flower", "check", *map(str, arguments)])


def test_what_fits_is_ready(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pictures(tmp_path / "data", {"cat": 10, "dog": 20})
    assert check(data, "--app", app) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["dog", "20"] in lines
    assert ["cat", "10"] in lines
    for text in (
        "30 samples of the kind image",
        "sizes, channels x height x width: 1x8x8 (30)",
        "no samples of: emu; a site need not hold all classes",
        "the site trains on 21 samples and holds out 9",
    ):
        assert text in out
    assert out.endswith("ready\n")
    assert check(data) == 0
    assert "give --app" in capsys.readouterr().out


def test_damaged_files_and_other_labels_are_counted_and_named(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    data = pictures(tmp_path / "data", {"cat": 8, "gnu": 2})
    for k in range(7):
        (data / "cat" / f"x{k}.png").write_bytes(b"no image")
    (data / "cat" / "notes.docx").write_bytes(b"")
    assert check(data, "--app", app) == 2
    out, err = capsys.readouterr()
    assert "7 of 17 images cannot be read:" in out
    assert out.count("not an image that Pillow knows") == 5
    assert f"cannot read {data}/cat/x0.png" in out
    assert "  and 2 more" in out
    assert "the label 'gnu' (2 samples) is none of the classes: cat, dog, emu" in out
    assert err.splitlines()[-1] == f"error: {data} is not ready for a round; fix the problems listed above"
    assert "Traceback" not in err
    assert f"1 of the files in {data} are skipped: no images" in err


def test_sizes_that_do_not_fit(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pictures(tmp_path / "data", {"cat": 6, "dog": 6}, side=9)
    assert check(data, "--app", app) == 2
    assert "are 1x9x9, the federation takes 1x8x8; see data.size" in capsys.readouterr().out
    pictures(data, {"emu": 3}, side=8)
    assert check(data) == 2
    out = capsys.readouterr().out
    assert "1x9x9 (12), 1x8x8 (3)" in out
    assert "images have several sizes; agree on one" in out
    settings = app / "settings.toml"
    settings.write_text(settings.read_text().replace("[data]", "[data]\nsize = 8"))
    assert check(data, "--app", app) == 0


def rows(n: int = 30) -> pd.DataFrame:
    return pd.DataFrame({"age": np.arange(n) + 20.0, "sex": ["f", "m"] * (n // 2), "label": ["cat", "dog"] * (n // 2)})


def test_tables(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows().assign(age=[None, None, *range(28)]).to_csv(tmp_path / "a.csv", index=False)
    assert check(tmp_path / "a.csv", "--app", app) == 2
    assert 'pyproject.toml has a shape; set shape = ""' in capsys.readouterr().out
    path = app / "pyproject.toml"
    path.write_text(path.read_text().replace('shape = "1x8x8"', 'shape = ""'))
    settings = app / "settings.toml"
    settings.write_text(settings.read_text().replace('[model]\nname = "cnn"\n', ""))
    assert check(tmp_path / "a.csv", "--app", app) == 0
    out = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["age", "numbers,", "0", "to", "27", "2"] in out
    assert ["sex", "2", "categories", "0"] in out
    rows().assign(label=["cat", None] * 15).to_csv(tmp_path / "b.csv", index=False)
    assert check(tmp_path / "b.csv", "--app", app) == 2
    assert "15 samples have no label, the first in row 2" in capsys.readouterr().out
    rows().assign(patient=[f"P{row}" for row in range(30)]).to_csv(tmp_path / "c.csv", index=False)
    assert check(tmp_path / "c.csv", "--app", app) == 0
    assert "another word in every row: patient; if it names the row, leave it out" in capsys.readouterr().out


def test_a_spreadsheet_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK\3\4" + bytes(100))
    assert check(tmp_path / "a.xlsx") == 2
    assert "a.xlsx is neither a CSV nor a Parquet file; save its table as CSV, a.csv" in capsys.readouterr().err


def test_a_setting_without_an_app(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows().rename(columns={"label": "diagnosis"}).to_csv(tmp_path / "a.csv", index=False)
    assert check(tmp_path / "a.csv") == 2
    assert "name it with --set data.label_column=…" in capsys.readouterr().err
    assert check(tmp_path / "a.csv", "--set", "data.label_column=diagnosis") == 0
    assert "30 samples of the kind table" in capsys.readouterr().out
    assert check(tmp_path / "a.csv", "--set", "data.label_column=diagnosis", "--app", app) == 2
    assert "what is agreed on is in" in capsys.readouterr().err


def test_sounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        with wave.open(str(tmp_path / "data" / name / "a.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.zeros(8000, np.int16).tobytes())
    assert check(tmp_path / "data") == 0
    (tmp_path / "data" / "dog" / "b.wav").write_bytes(b"RIFF, not quite")
    assert check(tmp_path / "data") == 2
    out = capsys.readouterr().out
    assert "1 of 3 sounds cannot be read:" in out
    assert "dog/b.wav: not a readable WAV file" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is not a folder or file"),
        (["nowhere", "--app", "."], "pyproject.toml is missing, or not of an app"),
    ],
)
def test_what_is_not_there_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check(*arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_digits_of_a_new_app_are_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("digits", "--app", make_app(tmp_path / "app")) == 0
    assert "to try things out" in capsys.readouterr().out


# --- errors of the ServerApp ------------------------------------------------------------------------------------------


def logged(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """What Flower writes of an exception of the ServerApp, in the words of its own process."""
    caplog.clear()
    LOG.log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=error)
    return "".join(logging.Formatter("%(message)s").format(record) + "\n" for record in caplog.records)


def test_a_users_error_at_the_server_is_one_line(
    app: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOG, "propagate", True)
    wire = Wire(app, tmp_path / "kept", **{"min-sites": 9, "out": str(tmp_path / "run")})
    with pytest.raises(UserError) as raised:
        wire.run_server()
    assert [record.getMessage() for record in caplog.records] == ["error: min-sites = 9, but there are 3 sites"]
    assert logged(raised.value, caplog) == "ServerApp raised an exception\n"


def test_other_errors_keep_their_traceback(app: Path, tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "propagate", True)
    Wire(app, tmp_path / "kept")
    for error in (KeyError("x"), StepError("client 1, round 2")):
        assert type(error).__name__ in logged(error, caplog)
