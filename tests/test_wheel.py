"""The wheel holds what users run, and nothing of the laboratory."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hardnet

ROOT = Path(__file__).parents[1]
INSTALLED, SOURCES = Path(hardnet.__file__).parent, ROOT / "src" / "hardnet"
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def built(root, folder):
    """The files of a wheel built from a copy of the sources."""
    pytest.importorskip("setuptools", minversion="77")
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        if (root / part).exists():
            shutil.copy(root / part, folder)
    for part in ("src", "benchmarks", "tests/benchmarks"):
        if (root / part).exists():
            shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    subprocess.run([sys.executable, "-c", BUILD, "dist"], cwd=folder, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("dist/*.whl"))).namelist()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("sources"))


def test_no_benchmark_is_in_the_wheel(names):
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hardnet"}
    assert not [name for name in names if "benchmarks" in name or "peers" in name]


def test_every_module_and_datum_is_in_the_wheel(names):
    wanted = [*SOURCES.rglob("*.py"), SOURCES / "py.typed", *SOURCES.rglob("*.json")]
    assert {path.relative_to(SOURCES.parent).as_posix() for path in wanted} <= set(names)


def test_the_installed_package_is_that_of_the_sources():
    """A build that finds an older one's folder ships modules that were removed since."""
    installed, sources = ({file.relative_to(top) for file in top.rglob("*.py")} for top in (INSTALLED, SOURCES))
    assert installed == sources


def test_the_laboratory_is_a_distribution_of_its_own(tmp_path):
    names, sources = built(ROOT / "lab", tmp_path), ROOT / "lab" / "src"
    wanted = [path for kind in ("py", "json", "safetensors") for path in sources.rglob(f"*.{kind}")]
    assert {path.relative_to(sources).as_posix() for path in wanted} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hardnet_lab"}
