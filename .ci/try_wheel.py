"""Install the wheel of a folder with the extra save alone, and do what a new user does first.

python .ci/try_wheel.py dist [PYTHON]    in a new virtual environment, or with a Python that has the wheel already
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SET = """
import torch
import hardnet as hn

limits = hn.Box(0.0, 1.0, name="share") & hn.Affine(torch.ones(1, 4), upper=1.5, name="budget")


def network():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 4)


def model():
    return hn.HardNet(network(), limits)
"""
SAVE = """
import torch, hardnet as hn, first
model = first.model()
hn.save(model, "saved")
open("x.csv", "w").write("\\n".join(",".join(f"{v:.6f}" for v in row) for row in torch.randn(20, 3).tolist()))
"""


def install(dist: Path, folder: Path) -> str:
    """A new environment with the wheel and what it asks for; its Python."""
    wheel = next(dist.glob("hardnet-*.whl"))
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"{wheel}[save]"], check=True)
    return str(python)


def first_steps(python: str, folder: Path, **options: str) -> None:
    """The README's example, then doctor, explain and check; each must end well."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    (folder / "readme.py").write_text(example[1], encoding="utf-8")
    (folder / "first.py").write_text(SET, encoding="utf-8")
    (folder / "saving.py").write_text(SAVE, encoding="utf-8")
    command = [python, "-m", "hardnet"]
    for words, expected in (
        ([python, "readme.py"], "1000 of 1000 samples satisfy every row"),
        ([*command, "--version"], "hardnet "),
        ([*command, "doctor", "--no-timing"], "kernels"),
        ([*command, "explain", "first.py:limits"], "projection"),
        ([*command, "methods", "--json"], "guarantee"),
        ([python, "saving.py"], ""),
        ([*command, "check", "saved", "x.csv", "--net", "first.py:network"], "20 of 20 samples"),
    ):
        done = subprocess.run(
            words, cwd=folder, env={**os.environ, **options}, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode or expected not in done.stdout:
            raise SystemExit(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        print("ok", " ".join(words[1:]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        (work / "work").mkdir()
        found = sys.argv[2] if len(sys.argv) > 2 else install(Path(sys.argv[1]), work / "environment")
        first_steps(found, work / "work")
