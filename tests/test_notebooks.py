"""The code cells of every notebook run in their order, without Jupyter; what they show is not stored."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_four():
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book, namespace = json.loads(path.read_text()), {"__name__": "notebook"}
    assert book["nbformat"] == 4
    assert book["cells"][0]["source"][0].startswith("# ")
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), path.name, "exec"), namespace)
