"""The notebooks run from a clean kernel, top to bottom, without a network."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples/notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("default")  # of Jupyter about itself
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: None) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's own start-up files
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert "find_spec" in code[0].source  # the install cell
    assert all(not cell.outputs and cell.execution_count is None for cell in code), "clear the outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=250, kernel_name="python3", resources=resources).execute()
    assert sum(bool(cell.outputs) for cell in code) >= 4
