"""One spelling: American in code, comments and pages, since public names such as `Ball(center=)` have it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BRITISH = re.compile(
    r"(?:factor|penal|orthogonal|linear|normal|summar|diagonal|optim|minim|maxim|regular|synchron|stabil|initial|standard"
    r"|general|special|recogn|organ|character|vector|parallel|discret|symmetr|random|visual)is(?:e|ed|es|er|ers|ing|ation"
    r"|ations|able)(?![a-z])|cent" + r"re|colo" + r"ur|neighbo" + r"ur|behavio" + r"ur|favo" + r"ur|judge" + r"ment",
    re.IGNORECASE,
)
RECORDED = "docs/suites.md"
"""Its captions quote recipes as they were recorded with their results."""
FOLDERS = ("src", "lab", "tests", "benchmarks", "docs", "examples")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md")]
FILES += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def british(text: str) -> list[str]:
    """The words of a text in the other spelling."""
    return sorted({match[0] for match in BRITISH.finditer(text)})


def test_no_file_has_the_other_spelling():
    found = {
        str(path.relative_to(ROOT)): words
        for path in FILES
        if path != Path(__file__) and str(path.relative_to(ROOT)) != RECORDED and (words := british(path.read_text()))
    }
    assert not found


@pytest.mark.parametrize("word", ["factor" + "ise", "cent" + "red", "Neighbo" + "urs", "penal" + "ised"])
def test_a_word_in_the_other_spelling_is_seen(word):
    assert british(f"a {word} b")
    assert not british("raise noise otherwise piecewise promise size realistic precise")
