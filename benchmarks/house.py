"""The numbers about the source code that ARCHITECTURE quotes: ``python -m benchmarks house``.

Files, lines and functions of each room; the functions that query device and transform; private names of torch; the
files that a call runs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hardnet as hn
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

ROOT = Path(hn.__file__).parent


def room(file: Path) -> str:
    """The folder of a file, or "at the top" for files directly in the package."""
    return file.relative_to(ROOT).parts[0] if file.parent != ROOT else "at the top"


def size(files: list[Path]) -> dict[str, int]:
    """Numbers of files, lines and functions, including methods, and the length of the longest file."""
    texts = [file.read_text() for file in files]
    functions = sum(isinstance(node, ast.FunctionDef) for text in texts for node in ast.walk(ast.parse(text)))
    longest = max(text.count("\n") for text in texts)
    return {
        "files": len(files),
        "lines": sum(text.count("\n") for text in texts),
        "functions": functions,
        "longest file": longest,
    }


def private_names(files: list[Path]) -> list[str]:
    """Private names of torch that the package uses, without repetition."""
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute | ast.ImportFrom):
                found |= {name for name in spelled(node) if name.startswith("torch.") and private(name)}
    # drop prefixes of longer names, such as torch._C
    return sorted(name for name in found if not any(other.startswith(f"{name}.") for other in found))


def spelled(node: ast.AST) -> list[str]:
    """The dotted names of an attribute or an import."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts, node = [node.attr, *parts], node.value
    known = {"torch": "torch", "pytree": "torch.utils._pytree", "forward_ad": "torch.autograd.forward_ad"}
    known["tensor"] = "torch.Tensor"
    return [".".join([known[node.id], *parts])] if isinstance(node, ast.Name) and node.id in known else []


def private(name: str) -> bool:
    """Whether some part of a dotted name is private."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def questions() -> list[str]:
    """The functions of `modes` that tell where a call runs or which transform it is in."""
    tree = ast.parse((ROOT / "modes.py").read_text())
    answers = {node.name: node.returns for node in tree.body if isinstance(node, ast.FunctionDef)}
    kinds = {name: "" if kind is None else ast.unparse(kind) for name, kind in answers.items()}
    return [name for name, kind in kinds.items() if kind.startswith(("bool", "Literal"))]


ENTRIES = {
    "`aff`, 2 rows A(x)": ("affine_few",),
    "`projection`, 2 rows A(x)": ("nearest_few",),
    "`projection`, a box and 2 rows": ("polyhedron",),
    "`projection`, 9 rows": ("polyhedron",),
    "`cvx`, a ball and a row": ("conic_entry",),
    "`nonlinear`, a sphere": ("nonlinear_step",),
}
"""The calls whose files are counted, each with the kernels that it launches."""


def walk_models() -> dict[str, hn.HardNet]:
    """A model for each of `ENTRIES`, six outputs."""
    torch.manual_seed(0)
    A, many, side = torch.randn(2, 6), torch.randn(9, 6), torch.ones(6)
    moving = hn.Affine(lambda x: A + 0.1 * x[:, :1, None], upper=lambda x: x[:, :2].abs())
    sets = (
        (moving, "aff"),
        (moving, "projection"),
        (hn.Box(-side, side) & hn.Affine(A, lower=-0.5, upper=lambda x: x[:, :2].abs()), "projection"),
        (hn.Affine(many, lower=-0.5, upper=lambda x: 0.5 + x[:, :1].square().expand(-1, 9)), "projection"),
        (hn.Ball(0 * side, lambda x: 1 + x[:, 0].square()) & hn.Affine(A[:1], upper=0.2), "cvx"),
        (
            hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True) - x[:, :1].square(), dim=6, upper=1.0),
            "nonlinear",
        ),
    )
    pairs = zip(ENTRIES, sets, strict=True)
    return {name: hn.HardNet(torch.nn.Linear(3, 6), *own).double() for name, own in pairs}


def visits(call: Callable[[], Any]) -> list[str]:
    """The files of the library that a call runs, one after the other, a file again where it is entered again."""
    seen: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)) and seen[-1:] != [file]:
            seen.append(file)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def walks() -> str:
    """The table of ARCHITECTURE: what a warm call visits, and its backward pass, which must run in this thread."""
    from hardnet.kernels.cpu.compiling import _imported

    rows, x = [], 3 * torch.randn(5, 3, dtype=torch.float64)
    for name, model in walk_models().items():
        model(x).sum().backward()
        there, y = visits(lambda model=model: model(x)), model(x)
        with torch.autograd.set_multithreading_enabled(False):
            back = visits(lambda y=y: y.sum().backward())
        kernels = set().union(*(_imported(ROOT / f"kernels/cpu/{entry}.py") for entry in ENTRIES[name]))
        rows.append([name, len(set(there)), len(there) - len(set(there)), len(set(back)), len(kernels)])
    return table_text(["call", "files", "entered again", "backward", "compiled from"], rows)


def figures() -> dict[str, Any]:
    """All numbers."""
    files = sorted(ROOT.rglob("*.py"))
    rooms = {name: [file for file in files if room(file) == name] for name in sorted({room(file) for file in files})}
    sizes = {name: size(own) for name, own in rooms.items()} | {"all": size(files)}
    return {"rooms": sizes, "questions": questions(), "private names of torch": private_names(files)}


def main_table(device: str = "cpu", out: Path | None = None) -> dict[str, Any]:
    """Print the tables, write JSON to `out` if given, and return the data."""
    found = {"environment": environment("cpu")} | figures()
    names = list(found["rooms"]["all"])
    print(
        table_text(["room", *names], [[name, *own.values()] for name, own in found["rooms"].items()]),
        walks(),
        sep="\n\n",
    )
    for name in ("questions", "private names of torch"):
        print(f"{name}: {len(found[name])}: {', '.join(found[name])}")
    if out is not None:
        write_json(out, found, indent=1)
    return found
