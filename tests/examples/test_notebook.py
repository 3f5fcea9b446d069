"""The notebook runs from top to bottom, and what it shows is what is committed."""

import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "digits.ipynb"


def printed(notebook):
    return "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs_and_ends_sparse_accurate_small_and_exported(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason='the notebook needs pip install "regrow[notebook]"')
    nbclient = pytest.importorskip("nbclient", reason='the notebook needs pip install "regrow[notebook]"')
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = printed(notebook)
    nbclient.NotebookClient(
        notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    after = printed(notebook)
    for text in (before, after):
        assert "90.0 % of the 23,184 targeted weights" in text
        assert float(re.search(r"fp32: .* ([\d.]+) % right", text).group(1)) > 90
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 4
    assert (tmp_path / "digits.regrow").is_file()


def test_the_notebook_shows_no_path_of_the_machine_it_was_made_on():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
    assert len(text) < 250_000
