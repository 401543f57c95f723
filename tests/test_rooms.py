"""The rooms of the house: each imports only from rooms to its left."""

import ast
from pathlib import Path

import pytest

import hardnet

ROOT = Path(hardnet.__file__).parent
ORDER = [
    {"errors"},
    {"files"},
    {"shapes", "modes"},
    {"rows"},
    {"kernels"},
    {"solvers"},
    {"functional"},
    {"sets"},
    {"layers"},
    {"model", "storage", "certificate"},
    {"testing", "metrics", "losses", "gradients", "features", "integrations", "train"},
    {"problems"},
    {"experiments"},
    {"cli", "__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "hardnet":
            names = [f"hardnet.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("hardnet.")}
    return found


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_the_left(path):
    room = room_of(path)
    assert room in RANK, f"{path.name} stands in no room"
    wrong = [other for other in imported_rooms(path) if other != room and RANK.get(other, 99) >= RANK[room]]
    same_rank = {other for other in wrong if RANK.get(other) == RANK[room]}
    assert not set(wrong) - allowed_neighbours(room, same_rank), f"{room} imports {wrong}"


def allowed_neighbours(room: str, same_rank: set[str]) -> set[str]:
    """Rooms that the design writes side by side may lean on each other in one direction."""
    lean = {("storage", "model"), ("__main__", "cli"), ("train", "metrics")}
    return {other for other in same_rank if (room, other) in lean}


def test_the_rule_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from hardnet.layers.base import Layer\nfrom hardnet import sets\n")
    assert imported_rooms(bad) == {"layers", "sets"}
