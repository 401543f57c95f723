"""The numbers about the source code that CONTRIBUTING quotes: ``python -m benchmarks house``.

Files, lines and functions of each room; the functions that query device and transform; private names of torch.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import hardnet
from hardnet_lab.experiments.markdown import table_text
from hardnet_lab.experiments.results import environment, write_json

ROOT = Path(hardnet.__file__).parent


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
    print(table_text(["room", *names], [[name, *own.values()] for name, own in found["rooms"].items()]))
    for name in ("questions", "private names of torch"):
        print(f"{name}: {len(found[name])}: {', '.join(found[name])}")
    if out is not None:
        write_json(out, found, indent=1)
    return found
