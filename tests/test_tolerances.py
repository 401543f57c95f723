"""Tests say how near two results must be: `allclose` without `rtol` allows 1e-5 of every number beside its `atol`."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def loose_lines(source: str) -> list[int]:
    """The lines of calls of `allclose` that leave `rtol` to its default, unless they assert a difference."""
    tree = ast.parse(source)
    denied = {id(node.operand) for node in ast.walk(tree) if isinstance(node, ast.UnaryOp)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in denied]
    named = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "allclose"]
    return [call.lineno for call in named if not any(keyword.arg == "rtol" for keyword in call.keywords)]


def test_every_tolerance_is_stated():
    found = {path.relative_to(TESTS).as_posix(): loose_lines(path.read_text()) for path in TESTS.rglob("*.py")}
    assert not {name: lines for name, lines in found.items() if lines}, "give rtol and atol"


def test_the_rule_can_fail():
    source = "assert torch.allclose(a, b, atol=1e-12)\nassert not torch.allclose(a, b)\ntorch.allclose(a, b, rtol=0)"
    assert loose_lines(source) == [1]


LIBRARY = TESTS.parent / "src" / "hardnet"
REWRITTEN = ("kernels/",)
"""Rooms whose texts of one algorithm still have constants of their own."""


def constants(source: str) -> dict[str, object]:
    """The numbers that a module gives a name in capitals, as written."""
    named = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            numeric = all(isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
                          for part in ast.walk(value))  # fmt: skip
            if name.strip("_").isupper() and numeric and not isinstance(getattr(value, "value", 0), str | bool):
                named[name] = ast.unparse(value)
    return named


def contradictions(sources: dict[str, str]) -> dict[str, dict[str, object]]:
    """Names with different numbers in different modules: name -> module -> number."""
    places: dict[str, dict[str, object]] = {}
    for module, source in sources.items():
        for name, value in constants(source).items():
            places.setdefault(name, {})[module] = value
    return {name: values for name, values in places.items() if len(set(values.values())) > 1}


def test_no_constant_has_two_values():
    files = {path.relative_to(LIBRARY).as_posix(): path.read_text() for path in LIBRARY.rglob("*.py")}
    assert not contradictions({name: text for name, text in files.items() if not name.startswith(REWRITTEN)})


def test_two_values_are_seen():
    twice = {"one.py": "FAR = 1e6\nNEAR = 1", "other.py": "FAR = 1e9\nNEAR = 1\nNAME = 'x'"}
    assert contradictions(twice) == {"FAR": {"one.py": "1000000.0", "other.py": "1000000000.0"}}
