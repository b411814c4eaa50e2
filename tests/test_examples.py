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
