"""The first compilation in a process prints one line; code loaded from numba's cache is not announced."""

import os
import subprocess
import sys

import pytest

KERNELS = """
import torch
from hardnet.kernels.cpu.compiling import compile_addresses
def first(numbers, count: int):
    return count + 1
def second(numbers, count: int):
    return count + 2
for dtype in (torch.float32, torch.float64):
    assert [compile_addresses(kernel, dtype)(0, 3) for kernel in (first, second)] == [4, 5]
"""


def test_a_compilation_is_announced_once_and_a_cached_one_not_at_all(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / "some_kernels.py").write_text(KERNELS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "import some_kernels"]
    said = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)]
    assert said[0].stderr.count("\n") == 1
    assert "numba compiles" in said[0].stderr
    assert "hardnet warmup" in said[0].stderr
    assert [done.stdout for done in said] == ["", ""]
    assert said[1].stderr == ""
