"""The first compilation in a process prints one line; code loaded from numba's cache is not announced.

What is cached depends on the text of the kernel and of what it imports.
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
