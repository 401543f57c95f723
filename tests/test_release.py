"""A release agrees with itself; the wheel does what a new user does first, with nothing else installed."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_optional import CORE

ROOT = Path(__file__).parents[1]
EXTRA = {"safetensors", "numpy", "first"}
"""What the extra save brings, numpy, which reads a table of inputs, and the script that is tried."""


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_the_same_everywhere():
    assert script("release").complaints() == []


def test_a_release_refuses_another_tag():
    assert "the version is" in script("release").complaints("v0.0.1")[0]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("CITATION.cff", "version: ", "version: 9."),
        ("lab/pyproject.toml", 'version = "', 'version = "9.'),
        ("CHANGELOG.md", "## ", "## 9.9.9 - 2020-01-01\n\n## "),
    ],
)
def test_a_release_refuses_versions_that_differ(name, old, new, tmp_path, monkeypatch):
    release = script("release")
    for part in ("lab/pyproject.toml", "CITATION.cff", "CHANGELOG.md", "src/hardnet/__init__.py"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).write_text((ROOT / part).read_text())
    text = (tmp_path / name).read_text()
    (tmp_path / name).write_text(re.sub(f"^{re.escape(old)}", new, text, count=1, flags=re.MULTILINE))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "SOURCE", tmp_path / "src/hardnet/__init__.py")
    assert any(name in complaint for complaint in release.complaints())


def test_setting_a_version_leaves_nothing_behind(tmp_path, monkeypatch):
    release = script("release")
    for part in ("lab/pyproject.toml", "CITATION.cff", "src/hardnet/__init__.py"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).write_text((ROOT / part).read_text())
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "SOURCE", tmp_path / "src/hardnet/__init__.py")
    release.set_version("7.8.9")
    assert release.version() == "7.8.9"
    for name, pattern in release.COPIES.items():
        assert pattern.search((tmp_path / name).read_text())[1] == "7.8.9"


def test_hooks_have_the_versions_of_the_constraints():
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert f"rev: v{pinned['ruff']}" in hooks


def test_versions_are_promised_in_one_way():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    floor = re.search(r"torch>=([\d.]+)", project["dependencies"][0])[1]
    makefile = (ROOT / "Makefile").read_text()
    assert f"OLDEST_TORCH ?= torch=={floor}.*" in makefile
    assert f"OLDEST_PYTHON ?= python{project['requires-python'].removeprefix('>=')}" in makefile
    page = (ROOT / "docs" / "install.md").read_text()
    assert f"torch {floor}" in page
    for classifier in project["classifiers"]:
        python = re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier)
        assert python is None or python[1] in page


def test_workflows_run_targets_that_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = workflow.read_text()
        assert not [name for name in re.findall(r"run: make (\S+)", text) if f"\n{name}:" not in makefile]
        assert not [name for name in re.findall(r"\.ci/[\w.]+", text) if not (ROOT / name).exists()]


GUARD = f"""
{CORE}
allowed |= {EXTRA!r}
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
"""


def test_the_wheel_alone_does_the_first_steps(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("safetensors")
    sources, place, work = (tmp_path / name for name in ("sources", "alone", "work"))
    sources.mkdir()
    work.mkdir()
    from tests.test_wheel import built

    built(ROOT, sources)
    wheel = next(sources.glob("dist/*.whl"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (place / "sitecustomize.py").write_text(GUARD)
    script("try_wheel").first_steps(sys.executable, work, PYTHONPATH=str(place))
