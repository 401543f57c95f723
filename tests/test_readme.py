"""The code of the README and of the docs runs as printed, block after block in one namespace per page."""

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from hardnet.layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ALL_BLOCKS = re.compile(r"^```(?:python|\{\.python \.slow\})\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""\[[^\]]*\]\(([^)#:\s]+)(?:#[^)]*)?\)|src(?:set)?="([^"]+)\"""")


def run(page, blocks, folder, monkeypatch):
    monkeypatch.chdir(folder)
    namespace = {"__name__": "page"}
    with patch.dict(LAYERS):  # a page may register a method of its own
        for block in blocks.findall(page.read_text()):
            exec(compile(block, str(page.name), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs_as_printed(page, tmp_path, monkeypatch):
    run(page, BLOCK, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if ".slow}" in page.read_text()], ids=lambda page: page.name)
def test_slow_code_runs_as_printed(page, tmp_path, monkeypatch):
    run(page, ALL_BLOCKS, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = [link or source for link, source in LINK.findall(page.read_text())]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_readme_has_exactly_two_set_up_commands():
    commands = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["demo", "test"]
