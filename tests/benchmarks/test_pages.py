"""The README's tables are those of the result files."""

import shutil
from pathlib import Path

import pytest

from benchmarks import pages
from hardnet.errors import FileError

ROOT = Path(__file__).parents[2]


def test_pages_are_current(tmp_path):
    for part in ("results", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "README.md", tmp_path)
    for page in pages.update(tmp_path):
        assert page.read_text() == (ROOT / page.relative_to(tmp_path)).read_text(), "run: make docs"


def test_a_part_is_put_between_its_markers():
    text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert pages.fill(text, {"x": lambda: "new\n"}) == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"


def test_a_part_that_nothing_makes_is_named():
    with pytest.raises(FileError, match="no generated part 'y'; there are x"):
        pages.fill("<!-- y:begin -->\n<!-- y:end -->", {"x": str})


def test_every_part_stands_on_a_page():
    text = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    assert set(pages.parts(ROOT / "results")) <= {match["name"] for match in pages.MARKED.finditer(text)}
