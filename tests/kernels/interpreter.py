"""Run statements on the CPU with Triton's interpreter, which must be switched on before Triton is imported.

A separate process therefore imports torch and Triton once, and a fork of it runs the statements of each call: calls
do not affect each other, and none waits for imports.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from importlib import import_module

import pytest


def interpret(module, *statements):
    """Run statements after ``from tests.kernels.<module> import *``; an error in them fails the calling test."""
    pytest.importorskip("triton")
    server = _server()
    code = "\n".join(["import torch", f"from tests.kernels.{module} import *", *statements])
    server.stdin.write(json.dumps(code) + "\n")
    server.stdin.flush()
    status, complaint = json.loads(server.stdout.readline())
    assert status == 0, complaint


@cache
def _server():
    """The separate process; it ends when this process closes its input."""
    command = [sys.executable, "-W", "ignore", "-c", f"from {__name__} import serve; serve()"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve():
    """Run the code in each line of the input, as JSON; reply with its exit status and the end of its output."""
    for name in ("triton.language", "hardnet.testing", "tests.kernels.affine_cases"):
        import_module(name)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as printed:
            child = os.fork()
            if not child:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                _run(json.loads(line))
            status = os.waitpid(child, 0)[1]
            printed.seek(0)
            print(json.dumps([status, printed.read().decode(errors="replace")[-2000:]]), flush=True)


def _run(code):
    """Run the code in a fork, from start to exit."""
    try:
        exec(code, {"__name__": "interpreted"})
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
