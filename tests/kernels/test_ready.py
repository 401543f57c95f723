"""A kernel that is not in the cache is compiled by one other process, while torch answers; `wait` waits for it."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

SETUP = """
import os, sys, time
import torch
import hardnet as hn
from hardnet.kernels.cpu import ready

raw = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
A = torch.randn(64, 2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
call = lambda: hn.functional.enforce_affine(raw, A, upper=0.0)

def loaded(kernel):
    until = time.time() + 300
    while not ready.ready(kernel):
        assert time.time() < until
        time.sleep(0.3)

def same(one, other):
    return bool((one - other).abs().max() < 1e-12)
"""
LATER = """
first, at_once = call(), ready.ready("affine_few")
(before,) = torch.autograd.grad(first.square().sum(), raw)
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        os._exit(0 if same(first, call()) else 1)
    assert os.waitpid(child, 0)[1] == 0
loaded("affine_few")
then = call()
(after,) = torch.autograd.grad(then.square().sum(), raw)
print(at_once, same(first, then), same(before, after))
print(sum(map(len, ready._makers.values())))
"""
WAIT = """
call()
print(ready.ready("affine_few"), len(ready._makers))
"""
CHECKPOINT = """
from torch.utils.checkpoint import checkpoint
y = checkpoint(lambda _: call(), raw, use_reentrant=False)
loaded("affine_few")
(again,) = torch.autograd.grad(y.square().sum(), raw)
(plain,) = torch.autograd.grad(call().square().sum(), raw)
print(same(again, plain))
"""
NO_FOLDER = """
from numba.core import caching
caching.CacheImpl._locator_classes = []
first = call()
time.sleep(0.5)
print(same(first, call()), ready.ready("affine_few"))
"""
FAILS = """
sys.executable = sys.argv[1]
for _ in range(5):
    first = call()
    time.sleep(0.4)
print(sum(map(len, ready._makers.values())), ready.ready("affine_few"))
"""


def begin(code, cache, mode="", *arguments):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "HARDNET_NUMBA": mode}
    command = [sys.executable, "-c", SETUP + code, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments):
    process = begin(*arguments)
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return said, errors


def test_torch_answers_until_one_other_process_has_compiled(tmp_path):
    crowd = [begin(LATER, tmp_path) for _ in range(3)]
    said = [process.communicate(timeout=600) for process in crowd]
    assert [out.splitlines()[0] for out, _ in said] == ["False True True"] * 3, said
    assert sum(int(out.splitlines()[1]) for out, _ in said) == 1
    assert sum("in the background" in errors for _, errors in said) == 1
    out, errors = run(WAIT, tmp_path)  # what is in the cache is used at once
    assert (out, errors) == ("True 0\n", "")


def test_where_results_may_not_depend_on_the_clock_compiled_code_is_waited_for(tmp_path):
    out, _ = run(WAIT, tmp_path, "wait")
    assert out == "True 0\n"


def test_a_checkpointed_region_computes_both_times_with_the_same_program(tmp_path):
    assert run(CHECKPOINT, tmp_path)[0] == "True\n"


def test_without_a_folder_for_the_cache_torch_computes_and_one_line_says_so(tmp_path):
    out, errors = run(NO_FOLDER, tmp_path)
    assert out == "True False\n"
    assert errors.count("\n") == 1
    assert "NUMBA_CACHE_DIR" in errors


@pytest.mark.skipif(os.name != "posix", reason="the interpreter in its place is a script")
def test_a_compiler_that_fails_is_not_started_for_ever(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    out, errors = run(FAILS, tmp_path, "", str(broken))
    assert out == "2 False\n"
    assert "exit code 3" in errors
    out, errors = run(FAILS, tmp_path, "", str(tmp_path / "host-program"))
    assert out == "0 False\n"
    assert "cannot start Python" in errors
