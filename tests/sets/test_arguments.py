"""Constants of sets: judged when the set is built, copied, and in the dtype of the network where they were written."""

import copy
from collections import namedtuple

import numpy as np
import pytest
import torch

import hardnet as hn
from hardnet import errors
from tests.draws import draw

pytestmark = pytest.mark.core

D = torch.float64
NAN, INF = torch.nan, torch.inf
EYE, ZERO = torch.eye(2, dtype=D), torch.zeros(2, dtype=D)


def bad(value, *shape):
    """Numbers of a shape, the last of them bad."""
    found = torch.ones(shape, dtype=D)
    found.view(-1)[-1] = value
    return found


FINITE = {
    "A": lambda value: hn.Affine(bad(value, 2, 3), upper=1.0),
    "b": lambda value: hn.Equality(EYE, bad(value, 2)),
    "center": lambda value: hn.Ball(bad(value, 2), 1.0),
    "radius": lambda value: hn.Ball(ZERO, value),
    "total": lambda value: hn.Simplex(3, value),
    "P": lambda value: hn.Quadratic(bad(value, 2, 2), ZERO, -1.0),
    "q": lambda value: hn.Quadratic(EYE, bad(value, 2), -1.0),
    "r": lambda value: hn.Quadratic(EYE, ZERO, value),
    "c": lambda value: hn.SecondOrderCone(EYE, ZERO, bad(value, 2), 1.0),
    "d": lambda value: hn.SecondOrderCone(EYE, ZERO, ZERO, value),
    "F0": lambda value: hn.LMI(bad(value, 2, 2), torch.zeros(1, 2, 2, dtype=D)),
    "F": lambda value: hn.LMI(EYE, bad(value, 1, 2, 2)),
    "lower": lambda value: hn.Box(bad(value, 2)),
    "upper": lambda value: hn.Affine(EYE, upper=[0.0, -value]),
}


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_bad_constant_is_refused_when_the_set_is_built(name, value):
    kind = errors.BoundsError if name in ("radius", "total", "lower", "upper", "b") else errors.NonFiniteError
    with pytest.raises(kind, match=f"{name}: expected"):
        FINITE[name](value)


def test_absent_bounds_are_bounds_and_learned_numbers_are_not_judged():
    box = hn.Box([-INF, 0.0], [INF, INF])
    assert box.violation(torch.tensor([[-1e300, -2.0]], dtype=D)).amax() == 2.0
    learned = hn.Affine(torch.nn.Parameter(bad(NAN, 2, 3)), upper=1.0)
    assert learned.A.isnan().any()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [D, torch.float32])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_indefinite_is_told_from_rounding(n, dtype, size):
    root = draw(n, n, seed=n).to(dtype)
    gram = size * (root @ root.mT) / n
    hn.Quadratic(gram, torch.zeros(n, dtype=dtype), -size)
    low = size * (root[:, : n // 2] @ root[:, : n // 2].mT) / n  # of half the rank: eigenvalues of zero, rounded
    hn.Quadratic(low, torch.zeros(n, dtype=dtype), -size)
    spoilt = torch.full((n,), size, dtype=dtype).diag()
    spoilt[-1, -1] = -100 * n * torch.finfo(dtype).eps * size
    with pytest.raises(errors.ConvexityError, match="P: expected a positive semidefinite matrix, got the eigenvalue"):
        hn.Quadratic(spoilt, torch.zeros(n, dtype=dtype), -size)


def test_the_indefinite_matrix_that_was_taken():
    with pytest.raises(errors.UnsupportedSetError, match="eigenvalue -1e-06"):
        hn.Quadratic(torch.tensor([1.0, -1e-6], dtype=D).diag(), 0, -0.5)


def test_rows_of_zeros_are_allowed_where_their_bounds_allow_zero():
    A = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=D)
    hn.Affine(A, lower=-1.0, upper=0.0)
    hn.Equality(A, [1.0, 0.0])
    hn.Affine(A, upper=lambda x: x)
    for build in (lambda: hn.Affine(A, upper=-1.0, name="flow"), lambda: hn.Equality(A, 1.0, name="flow")):
        with pytest.raises(errors.InfeasibleError, match=r"A: .* row\(s\) 1 of zeros") as caught:
            build()
        assert caught.value.rows == [[1]]
        assert caught.value.names == [["flow[1]"]]


def test_an_infeasible_error_names_its_rows():
    error = errors.InfeasibleError("C(x) is empty", [3], [[0, 2]]).named(["low", "mid", "high"])
    assert error.names == [["low", "high"]]
    assert error.samples == [3]
    assert error.rows == [[0, 2]]
    assert "low, high" in str(error)


@pytest.mark.parametrize("method", ["projection", "cvx"])
def test_the_rows_of_an_empty_set_are_named_by_the_layer(method):
    band = hn.Affine([[1.0, 0.0], [-1.0, 0.0]], upper=[-1.0, -1.0], name="band")
    model = hn.HardNet(torch.nn.Identity(), hn.Box(-5.0, 5.0, name="limits") & band, method)
    with pytest.raises(errors.InfeasibleError, match=r"band\[0\], band\[1\]") as caught:
        model(torch.zeros(3, 2, dtype=D))
    assert caught.value.names == [["band[0]", "band[1]"]] * 3


def test_a_caller_who_changes_a_tensor_later_changes_nothing():
    A, b = draw(2, 3), torch.ones(2, dtype=D)
    constraint = hn.Affine(A, lower=b - 2, upper=b)
    model, x = hn.HardNet(torch.nn.Identity(), constraint), 3 * draw(5, 3, seed=1)
    before = model(x)
    A.mul_(7)
    b.zero_()
    assert torch.equal(model(x), before)
    assert torch.equal(constraint.A, draw(2, 3))
    array = np.ones(2)
    box = hn.Box(-1.0, array)
    array[:] = -5
    assert torch.equal(box.violation(torch.ones(1, 2)), torch.zeros(1, 2))


def test_a_parameter_stays_itself():
    upper = torch.nn.Parameter(torch.ones(2, dtype=D))
    assert hn.Box(-1.0, upper).upper is upper
    leaf = torch.ones(2, dtype=D, requires_grad=True)
    hn.Box(-1.0, leaf).violation(torch.full((1, 2), 3.0, dtype=D)).sum().backward()
    assert leaf.grad is not None


WRITTEN = [
    lambda: hn.Affine([[1.0, 0.1, 0.0], [0.0, 1.0, 0.1]], upper=[0.1, 0.2]),
    lambda: hn.Affine(np.eye(3)[:2] / 3, lower=np.full(2, -1 / 3), upper=1),
    lambda: hn.Equality([[1, 1, 1]], 1) & hn.Box([0, 0, 0], [1, 1, 1]),
    lambda: hn.Box([0.1, 0.1, 0.1], 1 / 3),
    lambda: hn.Ball([0.1, 0.2, 0.3], 0.1) & hn.Box([-1.0] * 3, [1.0] * 3),
    lambda: hn.Simplex(3, 1 / 3),
]


@pytest.mark.parametrize("build", WRITTEN)
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_written_constants_follow_the_network_and_lose_no_digit(build, dtype):
    net, x = torch.nn.Linear(2, 3).to(dtype), draw(6, 2).to(dtype)
    model = hn.HardNet(net, build())
    y = model(x)
    assert y.dtype == dtype
    assert hn.check(model.constraint, y).ok
    exact = copy.deepcopy(model).float().double()
    z = exact(x.double())
    assert z.dtype == D
    fresh = hn.HardNet(copy.deepcopy(net).float().double(), build())
    assert torch.equal(z, fresh(x.double()))


@pytest.mark.parametrize("method", ["aff", "projection", "rayen", "dc3", "cdgm"])
def test_written_constants_follow_raw_where_no_network_tells_the_dtype(method):
    layer = hn.HardNet(torch.nn.Identity(), hn.Affine([[1.0, 0.1, 0.0], [0.0, 1.0, 0.1]], upper=[0.1, 0.2]), method)
    for dtype in (torch.float32, D, torch.float32):
        y = layer(draw(5, 3).to(dtype))
        assert y.dtype == dtype
        assert hn.check(layer.constraint, y).ok


@pytest.mark.parametrize("build", WRITTEN)
def test_written_constants_beside_half_precision(build):
    model = hn.HardNet(torch.nn.Linear(2, 3), build()).bfloat16()
    y = model(draw(6, 2).bfloat16())
    assert y.dtype == torch.bfloat16
    assert hn.check(model.constraint, y, tolerance=0.02).ok


def test_tensors_of_another_dtype_are_refused_and_half_ones_widened():
    raw = draw(4, 2).float()
    for build in (lambda A: hn.Affine(A, upper=1.0), lambda A: hn.Affine(lambda x: A.expand(4, 2, 2), upper=1.0)):
        with pytest.raises(errors.DTypeError, match="A: expected the dtype of raw"):
            build(EYE).numbers(raw, raw)
        assert build(EYE.bfloat16()).numbers(raw, raw).A.dtype == torch.float32


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_matrix_is_taken_or_refused_in_one_sentence(layout):
    A = getattr(EYE, layout)()
    if layout == "to_sparse_csr":
        assert hn.Affine(A, upper=1.0).dim == len(EYE)
    else:
        with pytest.raises(errors.DTypeError, match=r"A: expected a dense tensor.*use A\.to_sparse_csr\(\)"):
            hn.Affine(A, upper=1.0)
    with pytest.raises(errors.DTypeError, match="A: expected a dense tensor"):
        hn.Affine(lambda x: A, upper=1.0).numbers(ZERO, ZERO)


def test_words_are_no_numbers():
    with pytest.raises(errors.DTypeError, match="upper: expected numbers, got list"):
        hn.Box(0.0, ["one", "two"])
    with pytest.raises(
        errors.DTypeError, match="name: expected a string for the set, or a list of one for each row, got int"
    ):
        hn.Box(0.0, name=3)


def test_sets_are_built_under_the_meta_device():
    with torch.device("meta"):
        sets = [
            hn.Affine(torch.ones(2, 3), lower=torch.zeros(2), upper=1.0),
            hn.Box(torch.zeros(3), 1.0),
            hn.Simplex(3, torch.tensor(1.0)),
            hn.Ball(torch.zeros(3), torch.tensor(1.0)),
            hn.Quadratic(torch.eye(3), torch.zeros(3), -1.0),
            hn.SecondOrderCone(torch.eye(3), torch.zeros(3), torch.zeros(3), 1.0),
            hn.LMI(torch.eye(2), torch.zeros(3, 2, 2)),
            *(build() for build in WRITTEN),
        ]
    for constraint in sets:
        assert constraint.violation(torch.zeros(4, 3, device="meta")).shape[0] == 4
        assert repr(constraint)


def test_a_constant_that_was_written_survives_the_meta_device():
    box = hn.Box([0.1, 0.2], 1.0).to("meta").to_empty(device="cpu")
    assert torch.equal(box.lower, torch.tensor([0.1, 0.2], dtype=D))


def test_the_likely_slip_of_a_newcomer_is_named():
    with pytest.raises(errors.ShapeError, match=r"A: .*for one row add \.unsqueeze\(0\)"):
        hn.Affine(torch.ones(4), upper=1.0)
    with pytest.raises(errors.DTypeError, match=r"name: .*a list of one for each row"):
        hn.Affine(torch.ones(2, 4), upper=1.0, name=["first", 2])  # pyright: ignore[reportArgumentType]
    narrow = hn.Affine(torch.ones(3, 4), upper=lambda x: x[..., :1])
    with pytest.raises(errors.ShapeError, match=r"upper: .*for one number in all entries add \.expand\(5, 3\)"):
        hn.HardNet(torch.nn.Linear(2, 4), narrow)(torch.ones(5, 2))


def test_a_matrix_of_scipy_is_told_how_to_become_a_tensor():
    sparse = pytest.importorskip("scipy.sparse").eye(3, format="csr")
    with pytest.raises(errors.DTypeError, match=r"A: .*torch\.sparse_csr_tensor\(A\.indptr, A\.indices"):
        hn.Affine(sparse, upper=1.0)


class Slab(hn.sets.ConstraintSet):
    """``|normal' y| <= width``, whose numbers are its arguments."""

    polyhedral = True
    record = namedtuple("SlabNumbers", ["normal", "width"])

    def __init__(self, normal, width):
        super().__init__()
        self.take("normal", normal, ("n",), "finite")
        self.take("width", width, (), "size")

    def rows(self, numbers, like):
        width = numbers.width.unsqueeze(-1)
        return hn.sets.AffineRows(numbers.normal.unsqueeze(-2), -width, width)

    def residual(self, numbers, y):
        return ((numbers.normal * y).sum(-1, keepdim=True).abs() - numbers.width.unsqueeze(-1)).clamp_min(0)

    def scale(self, numbers, y):
        return (numbers.normal * y).abs().sum(-1, keepdim=True) + numbers.width.unsqueeze(-1)


def test_a_set_that_states_its_record_needs_no_numbers_of_its_own():
    x, y = torch.rand(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    slab = Slab([1.0, 1.0, 1.0], lambda x: x[..., 0])
    assert torch.equal(slab.numbers(x, y).width, x[:, 0])
    hn.testing.check_set(slab, y, x)
    both = slab & hn.Ball([0.0] * 3, 1.0)
    assert hn.check(both, hn.layers.HardNetCvx(both)(3 * y, x), x).ok


def test_numbers_of_its_own_count_also_where_a_record_is_inherited():
    class Half(hn.Ball):
        def numbers(self, x, like):
            center, radius = super().numbers(x, like)
            return center, radius / 2

        def block(self, numbers):
            return self.record(*numbers)

    ball = Half([0.0, 0.0], 1.0) & hn.Affine([[1.0, 0.0]], upper=[9.0])
    y = hn.layers.HardNetCvx(ball)(torch.tensor([3.0, 4.0]).double())
    assert (y - torch.tensor([0.3, 0.4], dtype=D)).abs().max() < 1e-14


def test_neither_a_record_nor_numbers_is_an_error():
    with pytest.raises(hn.errors.UnsupportedSetError, match="record"):
        hn.sets.ConstraintSet().numbers(None, torch.zeros(2))
