"""The site builds strictly from the repository, needs nothing from elsewhere, and its API names every public name."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hardnet as hn
from benchmarks.pictures import results
from benchmarks.pictures.__main__ import PICTURES
from benchmarks.pictures.style import LIGHT

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//"""
    r"""|<link[^>]*rel=["']?(?:stylesheet|preload|icon)[^>]*href=["']?(?:https?:)?//"""
    r"""|@import|url\(["']?(?:https?:)?//"""
)
IMAGE = re.compile(r"<img\b[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT, folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING" not in result.stderr
    return folder


def build(root, folder):
    """As `make docs` builds it: with --quiet warnings are dropped before they are counted."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1", "HARDNET_REPOSITORY": ""}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, env=quiet)


def test_a_dead_link_or_an_unknown_option_ends_the_build(tmp_path):
    """Of a site of one page with the settings of ours, so that the test above can fail."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    text = (ROOT / "mkdocs.yml").read_text()
    settings = re.sub(r"(?ms)^nav:\n.*?(?=^\S|\Z)", "nav: [index.md]\n", text)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "sizes.py").write_text((ROOT / "docs" / "sizes.py").read_text())
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"paths: \[.*\]", f"paths: [{ROOT}/src]", settings))
    for line, kept in (("A page.", True), ("[Nowhere](nowhere.md)", False)):
        (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n{line}\n")
        result = build(tmp_path, tmp_path / "site")
        assert (result.returncode == 0) == kept, result.stderr


def pages(site):
    return {path.relative_to(site): path.read_text() for path in sorted(site.rglob("*.html"))}


def names_of(module):
    """What a module says is public, or the errors, functions and classes that it defines itself."""
    kind = is_error if module is hn.errors else callable
    own = [n for n, v in vars(module).items() if kind(v) and v.__module__ == module.__name__ and not n.startswith("_")]
    return getattr(module, "__all__", own)


def is_error(value):
    return inspect.isclass(value) and issubclass(value, (Exception, Warning))


def public_names():
    """Every public object with all names that lead to it: `hardnet.Affine`, `hardnet.sets.affine.Affine`, ..."""
    found = {}
    for name in hn.__all__:
        value = getattr(hn, name)
        inner = names_of(value) if isinstance(value, ModuleType) else []
        paths = {f"hardnet.{name}.{n}": getattr(value, n) for n in inner} or {f"hardnet.{name}": value}
        for path, one in paths.items():
            names = {path, path.replace("hardnet.problems", "hardnet_lab.problems")}
            found.setdefault(id(one), set()).update(names | {f"{getattr(one, '__module__', '')}.{path.split('.')[-1]}"})
    return list(found.values())


def test_every_public_name_has_a_section(site):
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    sections = set(re.findall(r'id="(hardnet(?:_lab)?\.[\w.]+)"', text))
    assert not [names for names in public_names() if not names & sections]


def test_nothing_is_loaded_from_elsewhere(site):
    styles = {path: path.read_text() for path in site.rglob("*.css")}
    assert not [str(path) for path, text in {**pages(site), **styles}.items() if LOADED.search(text)]


def test_every_picture_is_described(site):
    images = [(page, image) for page, text in pages(site).items() for image in IMAGE.findall(text)]
    assert images
    assert not [(page, image) for page, image in images if not re.search(r'alt="[^"]{20,}"', image)]


def test_every_picture_is_drawn_for_light_and_dark():
    drawn = {f"{name}-{palette}.svg" for name in PICTURES for palette in ("light", "dark")}
    assert {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")} == drawn | {"icon.svg"}


def test_every_picture_is_shown():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert not set(PICTURES) - set(
        re.findall(r"pictures/([\w-]+)-light\.svg", "".join(page.read_text() for page in pages))
    )


@pytest.mark.parametrize("name", results.PICTURES)
def test_the_recorded_results_can_be_drawn(name):
    figure = results.PICTURES[name](LIGHT)
    assert all(panel.has_data() for panel in figure.axes)
    figure.clear()
