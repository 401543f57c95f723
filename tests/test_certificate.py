"""The certificate speaks the truth: in float64, per sample, also about NaN and rounding."""

import weakref
from fractions import Fraction
from math import isnan, log2

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hardnet as hn
from tests.draws import draw

D = torch.float64


def test_names_what_is_violated():
    constraint = hn.Affine(torch.eye(2), upper=torch.ones(2))
    certificate = hn.check(constraint, torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
    assert certificate.satisfied.tolist() == [True, False]
    assert certificate.max_violation == 2.0
    assert not certificate.ok
    assert "1 of 2 samples" in str(certificate)
    assert "Affine[1] of sample (1,) by 2" in str(certificate)


def test_evaluates_in_float64():
    # in float32 the sum 1e8 + 1 rounds to 1e8 and the violation of 1 would go unseen
    constraint = hn.Affine(torch.tensor([[1.0, 1.0]]), upper=torch.tensor([1e8]))
    certificate = hn.check(constraint, torch.tensor([[1e8, 1.0]]), tolerance=0.5)
    assert certificate.violation.dtype == torch.float64
    assert certificate.violation.item() == 1.0
    assert not certificate.ok


def test_nan_satisfies_nothing():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.tensor([[torch.nan, 0.5], [0.5, 0.5]]))
    assert certificate.satisfied.tolist() == [False, True]
    assert not certificate.ok


def test_rounding_is_relative_to_the_terms_of_the_row():
    constraint = hn.Affine(torch.tensor([[1e6, -1e6]], dtype=torch.float64), lower=0.0, upper=0.0)
    y = torch.tensor([[1 / 3, 1 / 3 + 1e-16]], dtype=torch.float64)
    assert hn.check(constraint, y).ok
    assert not hn.check(constraint, y + torch.tensor([0.0, 1e-12], dtype=torch.float64)).ok


DTYPES = [torch.float64, torch.float32, torch.bfloat16]
FAMILIES = ["plain", "cancelling", "huge", "tiny", "subnormal", "mixed"]


def adversarial(family, dtype, m, n, count, seed):
    """A (m, n), bounds (m,) and points (count, n) that make a plain sum lose what matters."""
    A, y = draw(m, n, seed=seed), draw(count, n, seed=seed + 1)
    top, least = log2(torch.finfo(dtype).max), log2(torch.finfo(dtype).smallest_normal)
    if family == "huge":
        A, y = A * 2.0 ** (0.6 * top), y * 2.0 ** (0.7 * top)
    if family == "tiny":
        A, y = A * 2.0 ** (0.6 * least), y * 2.0 ** (0.3 * least)
    if family == "subnormal":
        A, y = A * 2.0 ** (least - 3), y * 2.0 ** (0.2 * top)
    if family == "mixed":
        A, y = A * 2.0 ** (0.1 * top * draw(m, n, seed=9)), y * 2.0 ** (0.1 * top * draw(count, n, seed=8))
    if family == "cancelling":
        half = n // 2
        A[:, half : 2 * half], y[:, half : 2 * half] = A[:, :half], -y[:, :half]
        A, y = A * 2.0 ** (0.2 * top), y
    A, y = A.to(dtype), y.to(dtype)
    middle = (A.double() @ y[0].double()).nan_to_num(0.0).clamp(-(2.0 ** (top - 3)), 2.0 ** (top - 3)).to(dtype)
    return A, middle - middle.abs() * 1e-2, middle, y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("given", [None, 0.0])
def test_agrees_with_rational_arithmetic(family, dtype, given):
    """The violation is within the stated rounding of the exact one, so no satisfied row is beyond both together."""
    for n in (2, 5, 30):
        A, lower, upper, y = adversarial(family, dtype, 3, n, 6, seed=n)
        certificate = hn.check(hn.Affine(A, lower=lower, upper=upper), y, tolerance=given)
        table = zip(certificate.violation, certificate.tolerance, certificate.rounding, y.tolist(), strict=True)
        for violation, tolerance, rounding, point in table:
            for k in range(3):
                exact = exact_violation(A[k].tolist(), point, lower[k].item(), upper[k].item())
                got = [field[k].item() for field in (violation, tolerance, rounding)]
                if exact >= 2**1023:
                    assert got[0] == torch.inf
                else:
                    assert abs(Fraction(got[0]) - exact) <= Fraction(got[2]), (got, float(exact))
                if got[0] <= got[1]:
                    assert exact <= Fraction(got[1]) + Fraction(got[2])


def exact_violation(row, point, lower, upper):
    total = sum((Fraction(a) * Fraction(v) for a, v in zip(row, point, strict=True)), Fraction(0))
    sides = [Fraction(0)] + ([total - Fraction(upper)] if upper < torch.inf else [])
    return max(sides + ([Fraction(lower) - total] if lower > -torch.inf else []))


@pytest.mark.parametrize("unit", [1.0, 1e-20, 1e-40, 1e-150, 1e150])
@pytest.mark.parametrize("violation", [1e-6, 1.0])
def test_units_do_not_matter(unit, violation):
    """A tolerance is relative to bounds and outputs, so that a small unit hides nothing."""
    limit = torch.tensor([1.0, 2.0], dtype=D) * unit
    sets = [hn.Box(0.0, limit), hn.Affine(torch.ones(1, 2, dtype=D), upper=limit[1]), hn.Ball(0 * limit, limit[1])]
    for constraint in sets:
        assert not hn.check(constraint, (limit + violation * unit).expand(3, 2)).ok


@pytest.mark.parametrize("big", [1e3, 1e17, 1e40, 1e200])
@pytest.mark.parametrize("per_sample", [False, True])
def test_cancelling_terms_hide_nothing(big, per_sample):
    row = torch.tensor([[1.0, 1.0, -1.0]], dtype=D)
    A = (lambda x: row.expand(2, 1, 3)) if per_sample else row
    y = torch.tensor([[big, 0.5, big], [big, -0.5, big]], dtype=D)
    certificate = hn.check(hn.Affine(A, upper=0.0), y, x=y, tolerance=0.0)
    assert certificate.violation.squeeze(-1).tolist() == [0.5, 0.0]
    assert certificate.satisfied.tolist() == [False, True]
    assert certificate.rounding.max() < 1e-29 * big + 1e-11  # u^2 n of the terms, or u n where clearly violated


def test_products_beyond_the_range_of_float64():
    A = torch.tensor([[1e200, -1e200], [1e200, 1e200]], dtype=D)
    y = torch.tensor([[1e200, 1e200], [1e200, 2e200]], dtype=D)
    certificate = hn.check(hn.Affine(A, upper=1.0), y)
    assert certificate.violation.tolist() == [[0.0, torch.inf], [0.0, torch.inf]]
    assert certificate.satisfied.tolist() == [False, False]
    assert bool(certificate.tolerance.isfinite().all())


def curved():
    zero, one = torch.zeros(2, dtype=D), torch.eye(2, dtype=D)
    return [
        hn.Ball(zero, 1.0),
        hn.Quadratic(one, zero, -1.0),
        hn.SecondOrderCone(one, zero, zero, 1.0),
        hn.LMI(one, torch.stack([one, -one])),
    ]


EVERY_SET = [hn.Box(0.0), hn.Box(upper=1.0), hn.Simplex(2), hn.Affine(torch.eye(2, dtype=D), lower=0.0), *curved()]


@pytest.mark.parametrize("constraint", EVERY_SET, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, 1e308])
def test_what_is_not_finite_is_violated(constraint, bad):
    inside = [0.5, 0.5]
    certificate = hn.check(constraint, torch.tensor([inside, [bad, 0.5], [0.5, bad]], dtype=D))
    if bad == 1e308 and isinstance(constraint, hn.Box | hn.Affine | hn.LMI):
        return  # large and inside, or not
    assert certificate.satisfied.tolist() == [True, False, False]
    assert not certificate.ok
    if abs(bad) == torch.inf:
        assert certificate.max_violation == torch.inf


BAD_NUMBERS = {
    "upper": lambda: hn.Box(0.0, lambda x: x),
    "lower": lambda: hn.Box(lambda x: x - 1),
    "A": lambda: hn.Affine(lambda x: x.unsqueeze(-2), upper=9.0),
    "row bound": lambda: hn.Affine(torch.ones(1, 2, dtype=D), lower=lambda x: x[..., :1], upper=9.0),
    "total": lambda: hn.Simplex(2, lambda x: x[..., 0]),
    "radius": lambda: hn.Ball(torch.zeros(2, dtype=D), lambda x: x[..., 0]),
    "center": lambda: hn.Ball(lambda x: x, 9.0),
    "r": lambda: hn.Quadratic(torch.eye(2, dtype=D), torch.zeros(2, dtype=D), lambda x: -x[..., 0]),
    "parameter": lambda: hn.Cvxpy(lambda y, b: [y <= b], 2, parameters={"b": (lambda x: x, (2,))}),
}


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_are_violated_for_their_sample_alone(number, bad):
    x = torch.full((3, 2), 1.0, dtype=D)
    x[1] = bad
    certificate = hn.check(BAD_NUMBERS[number](), torch.full((3, 2), 0.5, dtype=D), x)
    absent = number == "upper" and bad == torch.inf
    assert certificate.satisfied.tolist() == [True, absent, True]


@pytest.mark.parametrize("unit", [1e-160, 1e-100, 1.0, 1e100, 1e160])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_balls_against_rational_arithmetic(unit, dtype):
    """``|y - c| <= r + v`` exactly, up to the stated rounding, for both signs of it."""
    unit = unit if dtype == torch.float64 else unit**0.2
    center, y = (unit * draw(7, seed=1)).to(dtype), (unit * draw(40, 7, seed=2)).to(dtype)
    certificate = hn.check(hn.Ball(center, 2.0 * unit), y)
    radius = Fraction(hn.Ball(center, 2.0 * unit).numbers(None, y).radius.item())
    for point, violation, rounding in zip(y.tolist(), certificate.violation, certificate.rounding, strict=True):
        square = sum((Fraction(p) - Fraction(c)) ** 2 for p, c in zip(point, center.tolist(), strict=True))
        least, most = (radius + Fraction((violation + sign * rounding).item()) for sign in (-1, 1))
        assert square <= most**2
        assert violation == 0 or least**2 <= square


def test_coordinates_of_a_box_are_compared_exactly():
    limits = torch.tensor([1.0, 3.0], dtype=D)
    above = torch.nextafter(limits, limits + 1)
    certificate = hn.check(
        hn.Box(0.0, limits) & hn.Equality(torch.ones(1, 2, dtype=D), 4.0), torch.stack([limits, above])
    )
    assert certificate.ok
    assert certificate.exact_box.tolist() == [True, False]
    assert certificate.coordinates.tolist() == [True, True, False]
    assert certificate.violation[1, 0] == above[0] - limits[0]


def test_by_name():
    constraint = hn.Box(0.0, 1.0, name="limits") & hn.Affine(torch.ones(1, 2, dtype=D), upper=1.0, name="budget")
    certificate = hn.check(constraint, torch.tensor([[0.5, 0.5], [3.0, 0.0], [1.0, 1.0], [0.0, torch.nan]], dtype=D))
    table = certificate.by_name()
    assert list(table) == ["limits[0]", "limits[1]", "budget"]
    assert [row.satisfied for row in table.values()] == [0.75, 0.75, 0.25]
    assert next(iter(table.values())).violation == 2.0
    assert isnan(list(table.values())[2].violation)
    empty = hn.check(constraint, torch.zeros(0, 2, dtype=D)).by_name()
    assert [row.satisfied for row in empty.values()] == [1.0, 1.0, 1.0]


def test_words_name_the_worst_rows_first_and_count_the_rest():
    constraint = hn.Box(0.0, torch.zeros(8, dtype=D))
    y = torch.arange(8.0, dtype=D).expand(2, 8)
    text = str(hn.check(constraint, y))
    places = [text.index(f"by {value}") for value in (7, 6, 5, 4, 3)]
    assert places == sorted(places)
    assert "2 more rows" in text


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


class Memory(TorchDispatchMode):
    """The bytes of the tensors that operations made and that are still alive: now, and at most."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self.seen = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known | self.seen:
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage):
        where, size = storage.data_ptr(), storage.nbytes()
        self.seen.add(where)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, where, size)

    def _forget(self, where, size):
        self.seen.discard(where)
        self.now -= size


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_memory_beside_y_is_that_of_the_answer(dtype):
    """Blocks of a fixed size where a box holds; the violations in float64 where they are asked for or not all zero.

    Twice that where what is allowed is written out too.
    """
    for samples, n in ((64, 100_000), (16_384, 400)):
        y = torch.full((samples, n), 0.5, dtype=dtype)
        constraint = hn.Box(0.0, 1.0) & hn.Affine(torch.ones(1, n, dtype=dtype), upper=0.5 * n)
        answer, blocks = 8 * samples * (n + 1), 8 * (1 << 21)
        with Memory() as memory:
            certificate = hn.check(constraint, y)
            assert certificate.ok
            assert memory.most <= blocks
            assert certificate.violation.shape == (samples, n + 1)
            assert memory.most <= 1.25 * answer + blocks
            assert len(certificate.by_name()) == n + 1
            assert memory.most <= 2.25 * answer + blocks


@pytest.mark.parametrize("place", [(0, 0), (3, 70), (399, 699)])
@pytest.mark.parametrize("bounds", ["one number", "per output", "per sample"])
@pytest.mark.parametrize("value", [1.0 + 2e-16, 3.0, -torch.inf, torch.nan])
def test_one_output_outside_its_box_is_seen_wherever_it_stands(place, bounds, value):
    """All other outputs are at their bounds, in as many blocks as there may be."""
    count, n = 400, 700
    shape = {"one number": (), "per output": (n,), "per sample": (count, n)}[bounds]
    limit = torch.ones(shape, dtype=D)
    y = torch.ones(count, n, dtype=D)
    constraint = hn.Box(limit, lambda x: x) if bounds == "per sample" else hn.Box(limit, limit)
    assert hn.check(constraint, y, limit).exact_box.all()
    y[place] = value
    certificate = hn.check(constraint, y, limit)
    outside = certificate.violation != 0
    assert outside.nonzero().tolist() == [list(place)]
    assert certificate.exact_box.logical_not().nonzero().flatten().tolist() == [place[0]]
    assert certificate.satisfied[place[0]].item() is (value < 2 and value > 0)
    assert certificate.max_violation == certificate.violation[place] or isnan(value)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_hundred_thousand_outputs_need_memory_of_their_size(samples):
    n = 100_000
    constraint = hn.Box(0.0, 1.0) & hn.Equality(torch.ones(1, n, dtype=D), n / 2) & hn.Simplex(n, total=n / 2)
    y = torch.full((samples, n), 0.5, dtype=D)
    with LargestTensor() as mode:
        assert hn.check(constraint, y).ok
    assert mode.largest <= 3 * samples * n


def test_samples_are_judged_alone_whatever_the_block():
    """More samples than one block holds, bad ones among them, rows shared and per sample."""
    n, count = 700, 400
    A, y = draw(2, n, seed=1), draw(count, n, seed=2)
    y[17, 3], y[211, 5] = torch.nan, torch.inf
    shared = hn.Affine(A, upper=0.0) & hn.Box(-3.0, 3.0)
    moving = hn.Affine(lambda x: A + 0 * x.unsqueeze(-1), upper=lambda x: 0 * x) & hn.Box(-3.0, 3.0)
    together, own = hn.check(shared, y), hn.check(moving, y, torch.zeros(count, 2, dtype=D))
    some = torch.tensor([0, 17, 93, 94, 211, 399])
    alone = torch.cat([hn.check(shared, y[i : i + 1]).violation for i in some])
    torch.testing.assert_close(together.violation[some], alone, rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(together.violation, own.violation, rtol=1e-12, atol=0, equal_nan=True)
    assert torch.equal(together.satisfied, own.satisfied)


@pytest.mark.parametrize("tolerance", [-1.0, torch.nan])
def test_refuses_a_tolerance_that_means_nothing(tolerance):
    with pytest.raises(hn.errors.BoundsError, match="tolerance: expected a number >= 0"):
        hn.check(hn.Box(0.0), torch.zeros(1, 2), tolerance=tolerance)


def test_empty_batch_is_satisfied():
    certificate = hn.check(hn.Box(0.0, 1.0), torch.zeros(0, 3))
    assert certificate.ok
    assert certificate.max_violation == 0.0


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_any_batch_shape(shape):
    certificate = hn.check(hn.Box(-9.0, 9.0), draw(*shape))
    assert certificate.satisfied.shape == shape[:-1]


def test_metrics_of_the_paper():
    constraint = hn.Affine(torch.eye(2, dtype=torch.float64), upper=0.0) & hn.Equality(
        torch.tensor([[1.0, 1.0]], dtype=torch.float64), 1.0
    )
    y = torch.tensor([[2.0, -1.0], [5e-5, 1.0]], dtype=torch.float64)
    inequalities, equalities = hn.metrics.violations(constraint, y)
    assert inequalities.largest.tolist() == [2.0, 1.0]
    assert inequalities.mean.tolist() == [1.0, (1 + 5e-5) / 2]
    assert inequalities.number.tolist() == [1.0, 1.0]
    assert equalities.largest.tolist() == pytest.approx([0.0, 5e-5], abs=1e-15)
    assert equalities.number.tolist() == [0.0, 0.0]
    assert inequalities.average() == (1.5, pytest.approx(0.7500125), 1.0)


def test_penalty_and_gap():
    y = torch.tensor([[2.0, 0.5], [0.5, 0.5]])
    assert hn.metrics.penalty(hn.Box(0.0, 1.0), y).tolist() == [1.0, 0.0]
    gap = hn.metrics.optimality_gap(torch.tensor([-13.0, 0.5]), torch.tensor([-14.0, 0.25]))
    assert gap.tolist() == pytest.approx([1 / 14, 0.25])


def test_a_set_without_rows_of_one_kind_reports_zeros():
    inequalities, equalities = hn.metrics.violations(hn.Box(0.0), torch.tensor([[-1.0]]))
    assert inequalities.largest.tolist() == [1.0]
    assert equalities.largest.tolist() == [0.0]


@pytest.mark.parametrize("y", [[0.0, 1.0], torch.ones(2, 2, dtype=torch.int64)])
def test_refuses_outputs_that_are_no_float_tensor(y):
    with pytest.raises(hn.errors.DTypeError, match="y: expected a"):
        hn.check(hn.Box(0.0, 1.0), y)


def test_an_output_that_should_be_zero_has_a_floor():
    """What a closed form leaves of an exact 0 is a rounding of a rounding; relative to itself it would be all."""
    corner = hn.Affine(torch.eye(3, dtype=torch.float64), upper=0.0)
    residue = torch.full((1, 3), 1e-33, dtype=torch.float64)
    assert hn.check(corner, residue).ok
    assert not hn.check(corner, 1e13 * residue).ok
