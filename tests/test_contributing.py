"""What CONTRIBUTING.md says under "Add something" can be done as it is written, in a copy of the project."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import images

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Add something")[2]
STEPS = dict(re.findall(r"^### (?:A|An) (\w+)\n.*?^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project, with its commands where `make setup` puts them."""
    folder = tmp_path / "project"
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("fedetf", "pytest"):
        program = folder / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {name} "$@"\n')
        program.chmod(0o755)
    return folder


def test_there_is_a_section_for_each_kind() -> None:
    assert list(STEPS) == ["method", "metric", "dataset", "partition", "encoder", "transform"]


@pytest.mark.parametrize("kind", STEPS)
def test_steps(kind: str, copy: Path, tmp_path: Path, write_parquet, one_core: None) -> None:
    for split, n in (("train", 60), ("test", 20)):
        write_parquet(f"data/mine/{split}.parquet", images(n), list(np.arange(n) % 10))
    here = {**os.environ, "PYTHONPATH": str(copy / "src"), "FEDETF_DATA": str(tmp_path / "data")}
    steps = subprocess.run(
        ["bash", "-ec", STEPS[kind]], cwd=copy, env=here, capture_output=True, text=True, check=False
    )
    assert steps.returncode == 0, steps.stdout + steps.stderr
    assert re.search(r"\bmine\b", steps.stdout)  # it is listed
    result = json.loads((copy / "runs" / "mine" / "result.json").read_text())
    assert result["rounds"] == 1
    lint = subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "src"], cwd=copy, check=False)
    assert lint.returncode == 0


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(named) >= 7
    assert [name for name in named if not (ROOT / name).exists()] == []
