"""The README's tables are those of the result files."""

import shutil
from pathlib import Path

import pytest

from hardnet.errors import FileError
from hardnet.experiments import readme

ROOT = Path(__file__).parents[2]


def test_pages_are_current(tmp_path):
    for part in ("results", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "README.md", tmp_path)
    for page in readme.update(tmp_path):
        assert page.read_text() == (ROOT / page.relative_to(tmp_path)).read_text(), "run: make docs"


def test_a_part_is_put_between_its_markers():
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert readme.fill(text, {"x": lambda: "new\n"}) == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"


def test_missing_markers_are_named():
    with pytest.raises(FileError, match="no markers for its generated part 'y'"):
        readme.fill("text", {"y": str})
