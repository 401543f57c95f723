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
