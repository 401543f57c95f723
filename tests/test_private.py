"""The private names of torch, numba and Triton that hardnet uses: each is listed here, and found in what is installed.

A name that a new version takes away fails here by name, before it fails somewhere in a user's program.
"""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import hardnet

SOURCES = Path(hardnet.__file__).parent
PRIVATE = {
    "numba.core.caching.FunctionCache": "numba 0.68",
    "numba.core.codegen.CPUCodeLibrary._finalize_final_module": "numba 0.68",
    "numba.core.codegen.CPUCodeLibrary._optimize_final_module": "numba 0.68",
    "numba.core.codegen.JITCPUCodegen": "numba 0.68",
    "numba.core.compiler.Compiler": "numba 0.68",
    "numba.core.compiler_lock.global_compiler_lock": "numba 0.68",
    "torch._C._autograd._top_saved_tensors_default_hooks": "torch 2.13; said to be there from 2.8 on",
    "torch.Tensor._is_zerotensor": "torch 2.6 to 2.15",
    "torch._C._are_functorch_transforms_active": "torch 2.6 to 2.15",
    "torch._C._has_storage": "torch 2.6 to 2.15",
    "torch._C._is_tracing": "torch 2.6 to 2.15",
    "torch._C._len_torch_dispatch_stack": "torch 2.6 to 2.15",
    "torch._disable_dynamo": "torch 2.6 to 2.15",
    "torch._higher_order_ops.while_loop.while_loop": "torch 2.6 to 2.15",
    "torch.autograd.forward_ad._current_level": "torch 2.6 to 2.15",
    "torch.compiler._is_exporting_flag": "torch 2.8 to 2.15; not in 2.6, which is one reason for the floor",
    "torch.utils._pytree.tree_flatten": "torch 2.6 to 2.15",
    "torch.utils._pytree.tree_leaves": "torch 2.6 to 2.15",
    "torch.utils._pytree.tree_map_only": "torch 2.6 to 2.15",
    "torch.utils._pytree.tree_unflatten": "torch 2.6 to 2.15",
}
"""Name -> the versions of its package that were seen to have it."""


def chain(node):
    """``a.b.c`` of nested attributes, or None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def used(path):
    """Private names in a file: imported, or reached from torch, numba, triton or something imported from them."""
    tree, found, roots = ast.parse(path.read_text(encoding="utf-8")), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                top = name.name.split(".")[0]
                roots[name.asname or top] = name.name if name.asname else top
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    outside = {own: full for own, full in roots.items() if full.split(".")[0] in ("torch", "numba", "triton")}
    found |= {full for full in outside.values() if private(full) or full.startswith("numba.core")}
    for node in ast.walk(tree):
        name = chain(node) if isinstance(node, ast.Attribute) else None
        if name and name.split(".")[0] in outside:
            full = ".".join([outside[name.split(".")[0]], *name.split(".")[1:]])
            if private(full):
                found.add(full)
    return {name for name in found if not any(other.startswith(name + ".") for other in found)}


def resolve(name):
    """The object of a dotted name: the longest importable front, then attributes."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def test_every_private_name_is_listed():
    found = set().union(*(used(path) for path in SOURCES.rglob("*.py")))
    methods = {name for name in PRIVATE if name.startswith("torch.Tensor.")}
    assert found == set(PRIVATE) - methods


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_there(name):
    pytest.importorskip(name.split(".")[0])
    installed = import_module(name.split(".")[0]).__version__
    try:
        resolve(name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{name} is gone in {installed} (seen in {PRIVATE[name]}): {error}")
