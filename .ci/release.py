"""Build the packages, check everything that a release promises, and with --tag make nothing else but the tag.

python .ci/release.py --check             build into dist/ and check
python .ci/release.py --check --tag v1.2  the same, and the tag must be the version's
python .ci/release.py --set 1.2.0         write a new version everywhere it stands
python .ci/release.py --tag v1.2          check, then `git tag` this commit
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "hardnet" / "__init__.py"
VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
COPIES = {
    "lab/pyproject.toml": re.compile(r'^version = "([^"]+)"', re.MULTILINE),
    "CITATION.cff": re.compile(r"^version: (\S+)", re.MULTILINE),
}
"""Files that cannot ask the source for the version; `--set` writes them, and a release refuses others."""
HEADING = re.compile(r"^## \[?(\d+\.\d+\.\d+)\]? - (\d{4}-\d{2}-\d{2})", re.MULTILINE)


def version() -> str:
    """The version, from the one place that it is written in."""
    found = VERSION.search(SOURCE.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{SOURCE}: holds no __version__")
    return found[1]


def set_version(new: str) -> None:
    """Write the version into the source and its copies."""
    for path, pattern in {SOURCE: VERSION, **{ROOT / name: pattern for name, pattern in COPIES.items()}}.items():
        text = path.read_text(encoding="utf-8")
        path.write_text(pattern.sub(lambda found: found[0].replace(found[1], new), text, count=1), encoding="utf-8")


def complaints(tag: str | None = None) -> list[str]:
    """What keeps this tree from being released, found without building anything."""
    wanted, wrong = version(), []
    if tag is not None and tag != f"v{wanted}":
        wrong.append(f"tag {tag}: the version is {wanted}")
    for name, pattern in COPIES.items():
        found = pattern.search((ROOT / name).read_text(encoding="utf-8"))
        if found is None or found[1] != wanted:
            wrong.append(f"{name}: expected version {wanted}, got {found and found[1]}")
    headings = HEADING.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if not headings or headings[0][0] != wanted:
        wrong.append(f"CHANGELOG.md: expected '## {wanted} - YYYY-MM-DD' as the first release")
    if [date for _, date in headings] != sorted((date for _, date in headings), reverse=True):
        wrong.append("CHANGELOG.md: releases are not in the order of their dates")
    released = re.search(r"^date-released: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if headings and (released is None or released[1].strip("\"'") != headings[0][1]):
        wrong.append(f"CITATION.cff: expected date-released {headings[0][1]}")
    return wrong


def build(into: Path) -> None:
    """Wheel and source archive of the library and of the laboratory, each judged by twine."""
    shutil.rmtree(into, ignore_errors=True)
    for part in (ROOT, ROOT / "lab"):
        shutil.rmtree(part / "build" / "lib", ignore_errors=True)  # or the wheel would hold modules that are gone
        _run(sys.executable, "-m", "build", "--outdir", str(into), str(part))
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(into.iterdir())))


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Check, set or tag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build into dist/ and check; nothing else changes")
    parser.add_argument("--set", metavar="VERSION", help="write the version everywhere")
    parser.add_argument("--tag", metavar="TAG", help="the tag to expect, or to make")
    asked = parser.parse_args()
    if asked.set:
        set_version(asked.set)
        return
    if not (asked.check or asked.tag):
        parser.error("give --check, --set or --tag")
    wrong = complaints(asked.tag)
    if wrong:
        raise SystemExit("\n".join(wrong))
    build(ROOT / "dist")
    if not asked.check:
        if _run("git", "status", "--porcelain"):
            raise SystemExit("commit first: the tag is a promise about files that are in the history")
        _run("git", "tag", "-a", asked.tag, "-m", f"hardnet {version()}")
    print(f"hardnet {version()}: {', '.join(path.name for path in sorted((ROOT / 'dist').iterdir()))}")


if __name__ == "__main__":
    main()
