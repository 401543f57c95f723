"""The core imports and works with torch alone; optional packages are asked for by the name of their extra."""

import subprocess
import sys
import textwrap

import pytest

CORE = textwrap.dedent("""
    import importlib.machinery, sys

    allowed = {"torch", "hardnet", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
               "filelock", "fsspec", "setuptools", "pkg_resources", "_distutils_hack", "functorch", "torchgen"}

    class CoreOnly(importlib.machinery.PathFinder):
        # the ordinary finder, blind to every installed package but torch and what torch itself needs

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            top = name.partition(".")[0]
            seen = top in sys.stdlib_module_names or top.startswith("_") or top in allowed
            return super().find_spec(name, path, target) if seen else None

    sys.meta_path[:] = [CoreOnly if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
""")

WORK = textwrap.dedent("""
    import torch
    import hardnet as hn

    A = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    net = torch.nn.Linear(4, 3).double()
    x = torch.randn(16, 4, dtype=torch.float64)
    for constraint in (
        hn.Affine(A, upper=lambda x: x[..., :2]),
        hn.Affine(lambda x: A + 0.1 * x[:, :2, None], upper=lambda x: x[..., :2]),
        hn.Affine(A, lower=-0.1, upper=0.1) & hn.Box(-1.0, 1.0),
        hn.Equality(A, torch.ones(2, dtype=torch.float64)),
        hn.Box(0.0, 1.0),
    ):
        model = hn.HardNet(net, constraint)
        y = model(x)
        y.sum().backward()
        assert hn.check(constraint, y, x).ok, (model.method, hn.check(constraint, y, x))
    print("core works")
""")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


def test_core_needs_torch_alone():
    result = run(CORE + WORK)
    assert result.returncode == 0, result.stderr
    assert "core works" in result.stdout


@pytest.mark.parametrize("package", ["numpy", "numba"])
def test_the_guard_refuses_other_packages(package):
    result = run(CORE + f"import {package}")
    assert result.returncode != 0
    assert f"No module named '{package}'" in result.stderr


def test_warmup_needs_no_package_for_the_command_line():
    result = run(CORE + "import sys\nfrom hardnet.__main__ import main\nsys.argv[1:] = ['warmup']\nmain()")
    assert (result.returncode, "numba is not installed" in result.stdout) == (0, True), result.stderr


def test_without_numba_torch_computes_the_closed_form():
    code = """
import sys
import torch
import hardnet as hn
from hardnet.kernels.cpu import launch as cpu

raw, A, upper = torch.ones(3, 2), torch.eye(2).expand(3, 2, 2), torch.zeros(2)
assert not cpu.HAS_NUMBA
assert hn.functional.enforce_affine(raw, A, None, upper).abs().max() == 0
print("torch alone" if "numba" not in sys.modules else "numba came in")
"""
    result = run(CORE + code)
    assert result.stdout == "torch alone\n", result.stderr


def test_numba_is_imported_by_the_first_call_that_needs_it():
    pytest.importorskip("numba")
    code = """
import sys
import torch
import hardnet as hn

model = hn.HardNet(torch.nn.Linear(4, 2), hn.Affine(torch.eye(2), upper=torch.zeros(2)))
before = "numba" in sys.modules
model(torch.ones(3, 4))
print(before, "numba" in sys.modules)
"""
    result = run(code)
    assert result.stdout == "False True\n", result.stderr


def test_saving_without_safetensors_names_the_extra(tmp_path):
    code = f"""
import torch, hardnet as hn
model = hn.HardNet(torch.nn.Linear(2, 2), hn.Box(0.0, 1.0))
try:
    hn.save(model, {str(tmp_path / "model")!r})
except hn.errors.MissingExtraError as error:
    print(error)
"""
    assert "pip install 'hardnet[save]'" in run(CORE + code).stdout


def test_without_the_laboratory_its_names_say_what_to_install():
    code = """
import hardnet as hn

for ask in (lambda: hn.compare, lambda: hn.problems.OwnProblem):
    try:
        ask()
    except hn.errors.MissingExtraError as error:
        print(error)
"""
    assert run(CORE + code).stdout.count("pip install hardnet-lab") == 2


def test_the_laboratory_is_found_by_the_names_of_the_library():
    pytest.importorskip("hardnet_lab")
    code = """
import hardnet as hn
import hardnet_lab.experiments.compare
import hardnet_lab.problems

assert hn.compare is hardnet_lab.experiments.compare.compare
assert hn.problems.OwnProblem is hardnet_lab.problems.OwnProblem
print("found")
"""
    assert run(code).stdout == "found\n"
