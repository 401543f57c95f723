"""The rooms of the house: each imports only from rooms to its left."""

import ast
from pathlib import Path

import pytest

import hardnet

ROOT = Path(hardnet.__file__).parent
ORDER = [
    {"errors"},
    {"files"},
    {"modes", "products"},
    {"shapes"},
    {"structure", "region"},
    {"rows"},
    {"tolerances"},
    {"kernels"},
    {"solvers"},
    {"nearest"},
    {"functional"},
    {"sets"},
    {"layers"},
    {"model", "storage", "certificate"},
    {"testing", "metrics", "losses", "gradients", "features", "integrations", "warming"},
    {"laboratory"},
    {"problems"},
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
    assert not set(wrong) - allowed_neighbors(room, same_rank), f"{room} imports {wrong}"


def allowed_neighbors(room: str, same_rank: set[str]) -> set[str]:
    """Rooms that the design writes side by side may lean on each other in one direction."""
    lean = {("storage", "model"), ("__main__", "cli")}
    return {other for other in same_rank if (room, other) in lean}


def test_the_rule_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from hardnet.layers.base import Layer\nfrom hardnet import sets\n")
    assert imported_rooms(bad) == {"layers", "sets"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_door_leads_to_the_laboratory(path):
    if path.name in ("laboratory.py", "problems.py"):
        return
    assert "hardnet_lab" not in imported_packages(path), "ask `hardnet.laboratory`"


def imported_packages(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.module.split(".")[0] for node in tree if isinstance(node, ast.ImportFrom) and node.module}


def test_a_second_door_is_seen(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from hardnet_lab.train import bars\n")
    assert "hardnet_lab" in imported_packages(bad)


AROUND = {
    "forward_ad",
    "is_compiling",
    "is_current_stream_capturing",
    "_is_exporting_flag",
    "_are_functorch_transforms_active",
    "_is_tracing",
    "_len_torch_dispatch_stack",
}
"""What torch is asked about the transform, graph or capture around a call."""


def asked(source: str) -> set[str]:
    """Which of these questions a source asks."""
    tree = ast.walk(ast.parse(source))
    return {getattr(node, "attr", getattr(node, "id", "")) for node in tree} & AROUND


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_modes_asks_what_stands_around_a_call(path):
    assert path.name == "modes.py" or not asked(path.read_text()), "ask `hardnet.modes`"


def test_a_question_elsewhere_is_seen():
    assert asked("if torch.compiler.is_compiling():\n    pass") == {"is_compiling"}
    assert asked((ROOT / "modes.py").read_text()) == AROUND


QUESTIONS = {"mode", "may_look", "may_wait", "plain"}
AFTER_THE_RECORD = [
    path
    for path in FILES
    if room_of(path) == "kernels"
    or path.parent.name == "polyhedron"
    or (
        path.stem in ("affine_formulas", "box_rows_gradient", "metric", "nearest_formulas", "polyhedron_fixed", "solve")
        and path.parent.name == "functional"
    )
]


def questions(source: str) -> set[str]:
    """Which questions about the call a source takes from `hardnet.modes`."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if node.module == "hardnet.modes" for alias in node.names} & QUESTIONS


@pytest.mark.parametrize("path", AFTER_THE_RECORD, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_after_the_record_asks_again(path):
    assert not questions(path.read_text()), "read `rows.Batch`: mode, look, memory"


def test_a_question_after_the_record_is_seen():
    assert questions("from hardnet.modes import HALF, may_look") == {"may_look"}
    assert questions((ROOT / "rows.py").read_text())


KINDS = {name for name in dir(hardnet.sets) if isinstance(getattr(hardnet.sets, name), type)} - {"ConstraintSet"}


def classes_asked_for(source: str) -> set[str]:
    """The classes of sets that `isinstance` or `issubclass` is asked about."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    asking = [call for call in calls if getattr(call.func, "id", "") in ("isinstance", "issubclass")]
    return {
        getattr(node, "id", getattr(node, "attr", "")) for call in asking for node in ast.walk(call.args[1])
    } & KINDS


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in ("layers", "model")], ids=lambda p: p.name)
def test_no_layer_asks_for_the_class_of_a_set(path):
    assert not classes_asked_for(path.read_text()), "ask the set: its class attributes, `structure`, `parts`"


def test_a_class_that_is_asked_for_is_seen():
    assert classes_asked_for("isinstance(part, hn.Box | Simplex)") == {"Box", "Simplex"}


def statuses_compared(source: str) -> int:
    """Comparisons with a member of Status itself: to torch.compile a tensor never equals one, so they say `int`."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    sides = [side for node in found for side in node.comparators if isinstance(node.ops[0], ast.Eq | ast.NotEq)]
    return sum(isinstance(side, ast.Attribute) and getattr(side.value, "id", "") == "Status" for side in sides)


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in ("functional", "solvers")], ids=str)
def test_a_status_is_compared_as_a_number(path):
    assert not statuses_compared(path.read_text()), "int(Status.SOLVED)"


def test_a_status_that_is_compared_as_it_is_is_seen():
    assert statuses_compared("bad = (status == Status.INFEASIBLE) | (status == int(Status.SOLVED))") == 1
