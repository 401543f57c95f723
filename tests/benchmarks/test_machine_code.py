"""Revisions are compared by what their kernels are compiled to, without a GPU."""

import pytest

from benchmarks.machine_code import Driver, differing, kernels, machine_code

triton = pytest.importorskip("triton")


def test_other_code_and_absent_kernels_are_named():
    assert differing({"a": "mov", "b": "add", "c": "st"}, {"a": "mov", "b": "sub", "d": "ld"}) == ["b", "c", "d"]
    assert not differing({"a": "mov"}, {"a": "mov"})


@pytest.mark.skipif(triton.knobs.runtime.interpret, reason="the interpreter compiles nothing")
def test_a_kernel_is_compiled_for_what_it_is_launched_with(monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    found = {name: (launcher, dtype) for name, launcher, dtype in kernels(1, 2)}
    assert len(found) == 2 * 2 * 3 * (3 + 4)
    each, shared = (machine_code(*found[f"closed form forward, 1x2, torch.float32, {A}, bounds (2, 2)"])
                    for A in ("A(x)", "shared A"))  # fmt: skip
    assert ".entry few_forward" in each
    assert "ld.global.v2.b32" in each  # aligned: both numbers of a row at once
    assert each != shared
