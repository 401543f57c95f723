"""What one call ``model(x)`` visits, against the table in CONTRIBUTING: a reader can follow a call by that list.

The hall (`modes`, `shapes`, `structure`, `rows`, `products`, `errors`) may be asked from everywhere, and a backend that
is only asked whether it takes the rows does not count; every other room is left once.
"""

import re
import sys
from pathlib import Path

import pytest
import torch

import hardnet as hn
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.solvers.polyhedron import projection_steps

ROOT = Path(hn.__file__).parent
TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
HALL = ("errors.py", "modes.py", "products.py", "shapes.py", "structure.py", "rows.py")
SAMPLES = 16

pytestmark = pytest.mark.skipif(
    not (HAS_NUMBA and projection_steps.has_daqp()), reason="the walk of a machine with all extras"
)


def matrix(m, n, moving):
    A = torch.randn(m, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (lambda x: A + 0 * x[..., :1, None]) if moving else A


def rows(m, n, moving=True):
    return hn.Affine(matrix(m, n, moving), upper=lambda x: x[..., :1].abs().expand(*x.shape[:-1], m))


def model_of(path):
    """The model of each row of the table."""
    ones, eye = torch.ones(1, 4, dtype=torch.float64), torch.eye(4).double()
    row, ball = hn.Affine(ones, upper=[0.1]), hn.Ball([0.0] * 4, 1.0)
    cone, lmi = hn.SecondOrderCone(eye, [0.0] * 4, [0.1] * 4, 1.0), hn.LMI(eye, torch.diag_embed(eye))
    quadratic = hn.Quadratic(eye, torch.zeros(4).double(), -0.5)
    sets = {
        "`aff`, few rows A(x)": (rows(2, 4), "aff"),
        "`aff`, rows that all samples share": (rows(2, 4, moving=False), "aff"),
        "`aff`, many rows A(x)": (rows(20, 30), "aff"),
        "`projection`, up to 4 rows": (rows(2, 4), "projection"),
        "`projection`, a box and a row": (hn.Box(0.0, 1.0) & hn.Equality(ones, 2.0), "projection"),
        "`projection`, more rows": (rows(6, 4), "projection"),
        "`cvx`, a simplex": (hn.Simplex(4), "cvx"),
        "`cvx`, a ball": (hn.Ball(torch.zeros(4, dtype=torch.float64), 1.0), "cvx"),
        "`cvx`, a box": (hn.Box(torch.zeros(4, dtype=torch.float64), 1.0), "cvx"),
        "`cvx`, a quadratic": (quadratic, "cvx"),
        "`cvx`, a second-order cone": (cone, "cvx"),
        "`cvx`, a matrix inequality": (lmi, "cvx"),
        "`cvx`, a ball and a row": (ball & row, "cvx"),
        "`cvx`, a ball and a box": (ball & hn.Box(-0.3, 0.3), "cvx"),
        "`cvx`, a curved set of each kind and a row": (ball & quadratic & cone & lmi & row, "cvx"),
    }
    constraint, method = sets[path]
    net = torch.nn.Linear(3, constraint.dim or (30 if "many" in path else 4))
    return hn.HardNet(net.double(), constraint, method)


def asked(frame):
    """Whether a backend is only asked whether it takes the rows."""
    while frame is not None:
        if frame.f_code.co_name in ("takes", "find"):
            return True
        frame = frame.f_back
    return False


def walk(call):
    """The files of hardnet in order of their first visit."""
    files = []

    def record(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and not asked(frame):
            name = str(path.relative_to(ROOT))
            if name not in files:
                files.append(name)

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


def table():
    """The walks of CONTRIBUTING: path -> files."""
    part = TEXT[TEXT.index("| path |") : TEXT.index("Three rules keep it so")]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines()[2:] if line.startswith("|")]
    return {path.strip(): re.findall(r"`([\w/]+\.py)`", files) for path, _, files in cells}


@pytest.mark.parametrize("path", table())
def test_a_call_visits_what_the_table_says(path):
    model, x = model_of(path), torch.randn(SAMPLES, 3, dtype=torch.float64)
    model(x)  # imports, and what is compiled at the first call
    visited = walk(lambda: model(x))
    assert [file for file in visited if file not in HALL] == table()[path]


@pytest.mark.parametrize("path", table())
def test_no_room_is_entered_twice(path):
    rooms = [file.split("/")[0] for file in table()[path]]
    assert rooms == sorted(rooms, key=rooms.index)


def test_the_count_is_right():
    for path, line in zip(table(), TEXT[TEXT.index("| path |") :].splitlines()[2:], strict=False):
        assert int(line.split(" | ")[1]) == len(table()[path])


@pytest.mark.parametrize("path", table())
def test_no_call_visits_more_than_eight_files(path):
    assert len(table()[path]) <= 8
