"""The one rule for shapes: a function of x returns the batch of raw in front, and nothing ever mixes samples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hardnet as hn
from hardnet.errors import ShapeError
from tests.draws import draw

pytestmark = pytest.mark.core

D = torch.float64
N = 3
EYE, ZERO = torch.eye(N, dtype=D), torch.zeros(N, dtype=D)


def positive(x):
    """One number per sample, ``(*batch)``."""
    return 1 + x[..., 0].abs()


NUMBERS = {
    "total": lambda number: hn.Simplex(N, number),
    "radius": lambda number: hn.Ball(ZERO, number),
    "r": lambda number: hn.Quadratic(EYE, ZERO, lambda x: -number(x)),
    "d": lambda number: hn.SecondOrderCone(EYE, ZERO, 0.1 * EYE[0], number),
    "ball & box": lambda number: hn.Ball(ZERO, number) & hn.Box(-2.0, 2.0),
    "ball & row": lambda number: hn.Ball(ZERO, number) & hn.Affine(torch.ones(1, N, dtype=D), upper=0.5),
}
"""Sets with one number per sample, given by a function of x."""

ENTRIES = {
    "Affine.A": ((None, N), lambda f: hn.Affine(f, upper=1.0)),
    "Affine.upper": ((2,), lambda f: hn.Affine(EYE[:2], upper=f)),
    "Affine.lower": ((2,), lambda f: hn.Affine(EYE[:2], lower=f)),
    "Equality.b": ((2,), lambda f: hn.Equality(EYE[:2], f)),
    "Box.upper": ((N,), lambda f: hn.Box(-99.0, f)),
    "Ball.center": ((N,), lambda f: hn.Ball(f, 1.0)),
    "Quadratic.P": ((N, N), lambda f: hn.Quadratic(f, ZERO, -1.0)),
    "Quadratic.q": ((N,), lambda f: hn.Quadratic(EYE, f, -1.0)),
    "SecondOrderCone.A": ((2, N), lambda f: hn.SecondOrderCone(f, torch.zeros(2, dtype=D), ZERO, 1.0)),
    "SecondOrderCone.c": ((N,), lambda f: hn.SecondOrderCone(EYE, ZERO, f, 1.0)),
    "LMI.F0": ((2, 2), lambda f: hn.LMI(f, torch.zeros(N, 2, 2, dtype=D))),
    "LMI.F": ((N, 2, 2), lambda f: hn.LMI(torch.eye(2, dtype=D), f)),
}
"""Every other number of a set: its core shape, and the set with a function in its place."""

BATCHES = [(), (0,), (1,), (2,), (N,), (5,), (2, 3), (N, N)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_number_per_sample_may_carry_a_last_dimension_and_never_mixes_samples(name, batch):
    x, raw = draw(*batch, 2), 3 * draw(*batch, N, seed=1)
    plain, column = NUMBERS[name](positive), NUMBERS[name](lambda x: positive(x).unsqueeze(-1))
    y = hn.HardNet(Given(raw), column)(x)
    assert y.shape == raw.shape
    assert torch.equal(y, hn.HardNet(Given(raw), plain)(x))
    assert column.violation(raw, x).shape[:-1] == batch
    assert torch.equal(column.violation(raw, x), plain.violation(raw, x))


class Given(torch.nn.Module):
    """A network that emits what it was given."""

    def __init__(self, raw):
        super().__init__()
        self.raw = raw

    def forward(self, x):
        return self.raw


def expected_refusal(core, own, batch):
    """Whether the written rule refuses a function's value of shape `own`."""
    tail = own[len(batch) :]
    if len(tail) != len(core) or any(want not in (None, size) for size, want in zip(tail, core, strict=True)):
        return True
    return any(size not in (1, wanted) for size, wanted in zip(own, batch, strict=False))


@pytest.mark.parametrize("name", ENTRIES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_other_shape_of_a_functions_value_is_refused_with_the_shape_for_this_batch(name, data):
    core, build = ENTRIES[name]
    batch = data.draw(st.sampled_from(BATCHES))
    sizes = st.sampled_from([1, 2, N, 5, *batch])
    wild = st.lists(sizes, max_size=4).map(tuple)
    some = tuple(size or 2 for size in core)
    near = st.sampled_from([some, (*batch, *some), (1, *some), (*batch, *some[1:]), batch, (*batch, 1, *some)])
    own = data.draw(st.one_of(near, wild))
    raw, x = draw(*batch, N), torch.zeros(*batch, 2, dtype=D)
    constraint = build(lambda x: torch.ones(own, dtype=D))
    if expected_refusal(core, own, batch):
        with pytest.raises(ShapeError, match=": expected shape"):
            constraint.numbers(x, raw)
    else:
        numbers = constraint.numbers(x, raw)
        assert constraint.residual(numbers, raw).shape[:-1] == batch


SLIPS = [
    (lambda: hn.Affine(lambda x: x, upper=1.0), r"A: expected shape \(4, m, 3\).*got \(4, 3\).*\.unsqueeze\(-2\)"),
    (lambda: hn.Affine(EYE[:1], upper=positive), r"upper: expected shape \(4, 1\).*got \(4,\).*\.unsqueeze\(-1\)"),
    (lambda: hn.Box(0.0, positive), r"upper: expected shape \(4, 3\).*got \(4,\).*\.unsqueeze\(-1\)\.expand"),
    (lambda: hn.Box(0.0, lambda x: ZERO + 1), r"upper: expected shape \(4, 3\).*got \(3,\).*\.expand\(4, 3\)"),
    (lambda: hn.Ball(ZERO, lambda x: x), r"radius: expected shape \(4,\) or \(4, 1\).*got \(4, 3\)"),
    (lambda: hn.Affine(draw(5, 2, 3), upper=1.0), r"A: expected shape \(m, 3\) or \(4, m, 3\).*got \(5, 2, 3\)"),
    (lambda: hn.Ball(draw(5, 3), 1.0), r"center: expected shape \(3,\) or \(4, 3\).*got \(5, 3\)"),
    (lambda: hn.Simplex(3, torch.ones(5, dtype=D)), r"total: expected shape \(\) or \(4,\) or \(4, 1\).*got \(5,\)"),
]


@pytest.mark.parametrize(("build", "message"), SLIPS)
def test_the_likely_slip_is_named(build, message):
    with pytest.raises(ShapeError, match=message):
        build().numbers(draw(4, 3), draw(4, 3, seed=1))


def test_a_bound_per_sample_is_refused_also_where_the_batch_has_as_many_samples_as_outputs():
    for size in (1, 2, N, 7):
        with pytest.raises(ShapeError, match="upper"):
            hn.HardNet(torch.nn.Identity(), hn.Box(0.0, positive))(draw(size, N))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_constants_may_carry_the_batch_of_raw(batch):
    raw = 3 * draw(*batch, N)
    sets = [
        hn.Affine(draw(*batch, 2, N, seed=1), upper=draw(*batch, 2, seed=2)),
        hn.Box(-torch.ones(*batch, N, dtype=D), 1.0),
        hn.Simplex(N, torch.ones(batch, dtype=D)),
        hn.Ball(draw(*batch, N, seed=3), torch.ones(*batch, 1, dtype=D)),
    ]
    for constraint in sets[: None if batch else 3]:
        assert constraint.constant is (not batch)
        y = hn.HardNet(torch.nn.Identity(), constraint, "auto")(raw)
        assert y.shape == raw.shape
        assert hn.check(constraint, y).ok


def test_a_batch_of_one_spreads_and_a_batch_of_raw_alone_is_kept():
    row = hn.Affine(lambda x: x[:1].unsqueeze(-2), upper=lambda x: torch.ones(1, 1, dtype=D))
    x, raw = draw(4, N), draw(4, N, seed=1)
    assert hn.HardNet(Given(raw), row, "aff")(x).shape == raw.shape
    with pytest.raises(ShapeError, match=r"A: expected shape \(m, 3\).*got \(4, 1, 3\)"):
        hn.Affine(lambda x: x.unsqueeze(-2), upper=1.0).numbers(x, raw[0])


def test_inside_vmap_the_rule_speaks_of_one_sample():
    constraint = hn.Affine(lambda x: x.unsqueeze(-2), upper=lambda x: x[..., :1]) & hn.Box(-1.0, lambda x: 1 + x.abs())
    x, raw = draw(5, N), 3 * draw(5, N, seed=1)
    expected = constraint.violation(raw, x)
    torch.testing.assert_close(torch.func.vmap(constraint.violation)(raw, x), expected)
    with pytest.raises(ShapeError, match=r"upper: expected shape \(3,\)"):
        torch.func.vmap(hn.Box(0.0, positive).violation)(raw, x)


@pytest.mark.parametrize("batch", BATCHES)
def test_a_smooth_function_returns_its_rows_behind_the_batch(batch):
    x, y = draw(*batch, 2), draw(*batch, N, seed=1)
    good = hn.sets.Smooth(N, lambda y, x: y.sum(-1, keepdim=True) - 1, lambda y, x: y - x[..., :1])
    assert good.violation(y, x).shape == (*batch, 1 + N)
    for side in ("inequality", "equality"):
        with pytest.raises(ShapeError, match=rf"{side}: expected shape .*\.unsqueeze\(-1\)"):
            hn.sets.Smooth(N, **{side: lambda y, x: y.sum(-1)}).violation(y, x)


def test_a_number_shared_by_a_batch_and_given_to_the_functions_on_tensors():
    raw = draw(6, 4)
    for column in (torch.ones(6, dtype=D), torch.ones(6, 1, dtype=D)):
        assert hn.functional.project_simplex(raw, column).shape == raw.shape
        assert hn.functional.project_ball(raw, torch.zeros(4, dtype=D), column).shape == raw.shape
    with pytest.raises(ShapeError, match="total: expected shape"):
        hn.functional.project_simplex(raw, torch.ones(5, dtype=D))
