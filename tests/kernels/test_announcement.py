"""The first compilation in a process prints one line; code loaded from numba's cache is not announced.

What is cached depends on the text of the kernel and of what it imports, and gives the bits that it gave when compiled.
"""

import os
import shutil
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

SUMS = """
import numpy as np
import torch
from numba import carray
from hardnet.kernels.cpu.compiling import bare_summed, compile_addresses, compiled

@bare_summed
def moment(numbers, weights):
    total, crossed, most = 0.0, 0.0, 0.0
    for j in range(numbers.shape[0]):
        total += numbers[j] * numbers[j] * numbers[j]
    for j in range(numbers.shape[0]):
        crossed += numbers[j] * weights[j] / (1.0 + weights[j] * weights[j])
    for j in range(numbers.shape[0]):
        most = max(most, abs(numbers[j] + weights[j]) * 0.25)
    return total + np.sqrt(abs(crossed)) + np.log(1.0 + most) + np.cos(total)

@compiled
def every(numbers):
    n = len(numbers)
    for i in range(1, n):
        left, right = moment(numbers[:i], numbers[n - i :]), moment(numbers[i:], numbers[: n - i])
        ends = moment(numbers[i // 2 :], numbers[: n - i // 2]) + moment(numbers[: i // 2], numbers[n - i // 2 :])
        numbers[i] = 1e-3 * (left + right - ends)
    return 0

def first(numbers, count: int):
    return every(carray(numbers, (count,))) + every(carray(numbers, (count // 2,))) + every(carray(numbers, (3,)))

numbers = torch.linspace(0.1, 1.0, 301, dtype=torch.float64)
compile_addresses(first, torch.float64)(numbers.data_ptr(), len(numbers))
print(numbers.numpy().tobytes().hex())
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


def test_code_has_the_same_bits_in_the_process_that_compiles_it(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / "some_sums.py").write_text(SUMS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "import some_sums"]
    compiled, loaded = (subprocess.run(command, env=environment, capture_output=True, check=True) for _ in range(2))
    assert b"numba compiles" in compiled.stderr
    assert loaded.stderr == b""
    assert compiled.stdout == loaded.stdout


def test_an_edit_compiles_anew_only_the_kernels_that_it_touches(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    from hardnet.kernels.cpu import compiling

    copied = tmp_path / "kernels"
    shutil.copytree(compiling.KERNELS, copied)
    monkeypatch.setattr(compiling, "KERNELS", copied)
    entries = [copied / "cpu" / f"{name}.py" for name in ("projection", "nearest_few", "conic_entry")]
    digests = lambda: [compiling.digest.__wrapped__(entry) for entry in entries]
    before = digests()
    for edited, touched in (
        ("cpu/pivoting.py", [True, False, False]),
        ("cpu/conic_entry.py", [False, False, True]),
        ("limits.py", [True, False, True]),
        ("cpu/tiles.py", [True, True, True]),
    ):
        with (copied / edited).open("a") as text:
            text.write("# an edit\n")
        after = digests()
        assert [new != old for new, old in zip(after, before, strict=True)] == touched, edited
        before = after
