"""The contract, the closed form and the projection on stand-ins for other machines: plain instructions, other threads.

The variables are read when libraries load, so each machine is a process of its own. Deadlines are for a machine many
times as slow; what is tried is small, so that all of it takes about two minutes on quiet cores.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "NUMBA_CPU_NAME": "generic"}
MACHINES = {
    "old, one thread": OLD | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "old, two threads, without numba": OLD | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "HARDNET_NUMBA": "0"},
    "this one, two threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
}
FILES = ["test_contract.py", "functional/test_closed_form.py", "functional/test_polyhedron.py"]
CHOSEN = " or ".join(
    [
        "(layer_keeps and (aff-box or aff-strict or projection-moving or cvx-ball or cvx-simplex))",
        "(any_conditioning and dtype0)",
        "bad_mate",
        "idempotent",
        "behind_the_answer",
        "degenerate",
        "narrow_dtypes",
    ]
)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_promises_hold_there(machine):
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    done = subprocess.run(
        [*command, *(str(ROOT / "tests" / file) for file in FILES)],
        cwd=ROOT,
        env=os.environ | MACHINES[machine],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
