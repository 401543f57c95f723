"""The C++ example, built by CMake and run: what Python answers, on 1000 states, always within the limits."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "cpp"


def run(folder, *command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_example_answers_as_python_does(tmp_path):
    folder = tmp_path / "cpp"
    shutil.copytree(EXAMPLE, folder)
    assert "1000 of 1000 samples satisfy every row" in run(folder, sys.executable, "export.py")
    run(folder, "cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
    run(folder, "cmake", "--build", "build")
    assert run(folder, "build/policy").startswith("1000 states")
