"""Curved sets: agreement with CVXPY, the set contract, numbers that depend on x, and every refusal."""

import pytest
import torch

from hardnet import check, sets
from hardnet.errors import BoundsError, ConvexityError, DTypeError, InfeasibleError, ShapeError, UnsupportedSetError
from hardnet.layers import HardNetCvx
from hardnet.testing import check_set
from tests.draws import draw
from tests.solvers.convex import D

N = 3


def symmetric(*shape: int, seed: int) -> torch.Tensor:
    F = draw(*shape, seed=seed)
    return (F + F.mT) / 2


def members() -> dict[str, sets.ConstraintSet]:
    root = draw(N, N, seed=1)
    return {
        "simplex": sets.Simplex(N, 1.2),
        "ball": sets.Ball(0.3 * draw(N, seed=2), 0.9),
        "quadratic": sets.Quadratic(root @ root.mT, draw(N, seed=3), -1.0),
        "cone": sets.SecondOrderCone(draw(4, N, seed=4), 0.1 * draw(4, seed=5), 0.3 * draw(N, seed=6), 1.0),
        "lmi": sets.LMI(torch.eye(3, dtype=D), symmetric(N, 3, 3, seed=7)),
        "box": sets.Box(-0.4 * torch.ones(N, dtype=D), 0.6),
        "rows": sets.Affine(draw(4, N, seed=8), upper=0.5),
    }


SETS = members()
MIXED = {
    "ball & box": SETS["ball"] & SETS["box"],
    "quadratic & rows": SETS["quadratic"] & SETS["rows"],
    "cone & ball & lmi": SETS["cone"] & SETS["ball"] & SETS["lmi"],
    "simplex & quadratic": SETS["simplex"] & sets.Quadratic(2 * torch.eye(N, dtype=D), torch.zeros(N, dtype=D), -0.7),
    "balance & cone & box": sets.Equality(torch.ones(1, N, dtype=D), 0.0) & SETS["cone"] & SETS["box"],
}
ALL = {**{name: one for name, one in SETS.items() if name != "rows"}, **MIXED}


def project(constraint, raw):
    return HardNetCvx(constraint)(raw)


def in_cvxpy(constraint, y, cp):
    """The same set said in CVXPY."""
    number = {name: value.numpy() for name, value in constraint.named_buffers()}
    kind = type(constraint).__name__
    if kind == "Intersection":
        return [one for part in constraint.parts for one in in_cvxpy(part, y, cp)]
    if kind == "Simplex":
        return [y >= 0, cp.sum(y) == number["total"]]
    if kind == "Ball":
        return [cp.norm(y - number["center"]) <= number["radius"]]
    if kind == "Quadratic":
        return [cp.quad_form(y, cp.psd_wrap(number["P"])) / 2 + number["q"] @ y + number["r"] <= 0]
    if kind == "SecondOrderCone":
        return [cp.norm(number["A"] @ y + number["b"]) <= number["c"] @ y + number["d"]]
    if kind == "LMI":
        return [number["F0"] + sum(y[i] * number["F"][i] for i in range(N)) >> 0]
    if kind == "Box":
        return [y >= number["lower"], y <= number["upper"]]
    if kind == "Equality":
        return [number["A"] @ y == number["lower"]]
    return [number["A"] @ y <= number["upper"]]


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_a_cone_solver(name):
    cp = pytest.importorskip("cvxpy")
    raw = 2 * draw(3, N, seed=11)
    ours = project(ALL[name], raw)
    for point, found in zip(raw, ours, strict=True):
        y = cp.Variable(N)
        problem = cp.Problem(cp.Minimize(cp.norm(y - point.numpy())), in_cvxpy(ALL[name], y, cp))
        problem.solve(cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        torch.testing.assert_close(found, torch.as_tensor(y.value, dtype=D), rtol=0, atol=2e-5)
        assert torch.linalg.vector_norm(found - point).item() <= problem.value + 1e-9  # ours is at least as near


@pytest.mark.parametrize("name", ALL)
def test_keeps_the_contract_of_a_set(name):
    raw = torch.cat([2 * draw(5, N, seed=12), 0.05 * draw(3, N, seed=13)])
    check_set(ALL[name], raw)


@pytest.mark.parametrize("name", ALL)
def test_projection_is_feasible_to_rounding_idempotent_and_firmly_non_expansive(name):
    u, v = 2 * draw(30, N, seed=14), 2 * draw(30, N, seed=15)
    a, b = project(ALL[name], u), project(ALL[name], v)
    assert check(ALL[name], torch.cat([a, b])).ok
    torch.testing.assert_close(project(ALL[name], a), a, rtol=0, atol=1e-14)
    assert ((a - b) * (u - v)).sum(-1).sub((a - b).square().sum(-1)).min().item() > -1e-12
    assert ((u - a) * (b - a)).sum(-1).max().item() < 1e-12  # variational inequality, b is feasible


@pytest.mark.parametrize("name", ALL)
def test_float32_is_feasible_to_its_rounding(name):
    single = members() if name in SETS else None
    constraint = (single[name] if single else ALL[name]).to(torch.float32)
    y = project(constraint, (2 * draw(20, N, seed=16)).float())
    assert y.dtype == torch.float32
    worst = check(constraint, y)
    assert bool((worst.violation <= 4 * worst.tolerance).all())
    ALL[name].to(D)


def test_every_number_may_depend_on_x():
    x = draw(4, 2, seed=20).requires_grad_()
    root, F = draw(N, N, seed=1), symmetric(N, 2, 2, seed=7)
    moving = [
        sets.Simplex(N, lambda x: 1 + x[..., 0].square()),
        sets.Ball(lambda x: x[..., :1] * torch.ones(N, dtype=D), lambda x: 0.5 + x[..., 1].square()),
        sets.Quadratic(
            lambda x: root @ root.mT * (1 + x[..., 0, None, None] ** 2), lambda x: x[..., :1].expand(-1, N), -1.0
        ),
        sets.SecondOrderCone(draw(2, N), torch.zeros(2, dtype=D), lambda x: 0.1 * x[..., :1].expand(-1, N), 0.4),
        sets.LMI(torch.eye(2, dtype=D), lambda x: F * (1 + x[..., 0, None, None, None] ** 2)),
    ]
    raw = 3 * draw(4, N, seed=21)
    for constraint in [*moving, moving[2] & moving[3], moving[2] & moving[4]]:
        assert not constraint.constant
        y = HardNetCvx(constraint)(raw, x)
        assert check(constraint, y, x).ok
        (grad,) = torch.autograd.grad((y * draw(4, N, seed=22)).sum(), x)
        assert grad.abs().max().item() > 1e-6
        with pytest.raises(ShapeError, match="x: expected an input"):
            constraint.numbers(None, raw)


def test_learned_numbers_receive_gradients():
    radius = torch.nn.Parameter(torch.tensor(0.5, dtype=D))
    learned = sets.Ball(torch.zeros(N, dtype=D), radius) & SETS["box"]
    raw = 2 * draw(5, N, seed=23)
    project(learned, raw).square().sum().backward()
    assert radius.grad is not None
    assert radius.grad.item() > 0.1
    assert not learned.constant


def test_gradcheck_through_the_numbers_of_an_intersection():
    A, root = draw(2, 2, seed=1), draw(2, 2, seed=2)
    both = sets.SecondOrderCone(A, lambda x: x[..., :2], torch.zeros(2, dtype=D), 0.6) & sets.Quadratic(
        root @ root.mT, lambda x: x[..., 1:], -1.0
    )
    raw, x = (2 * draw(2, 2, seed=3)).requires_grad_(), (0.2 * draw(2, 3, seed=4)).requires_grad_()
    assert torch.autograd.gradcheck(HardNetCvx(both), (raw, x))


def test_the_solution_of_an_intersection_is_reported():
    found = HardNetCvx(MIXED["ball & box"]).solve(2 * draw(6, N))
    assert found.status.tolist() == [0] * 6
    assert found.residual.max().item() < 1e-9
    assert found.dual.shape == (6, N + 1 + N)


def test_which_sets_have_a_projection_of_their_own():
    assert (SETS["box"] & SETS["rows"]).polyhedral
    assert not MIXED["ball & box"].polyhedral
    assert SETS["simplex"].polyhedral
    assert not SETS["ball"].polyhedral
    assert SETS["ball"].dim == SETS["lmi"].dim == SETS["cone"].dim == SETS["quadratic"].dim == N
    assert sets.Ball(lambda x: x, 1.0).dim is None


EYE = torch.eye(2, dtype=D)
ZERO = torch.zeros(2, dtype=D)
REFUSED = [
    (lambda: sets.Simplex(0), ShapeError, "dim: expected a positive integer, got 0"),
    (lambda: sets.Simplex(3, -1.0), BoundsError, "total: expected a finite number >= 0, got -1"),
    (lambda: sets.Ball(ZERO, -1.0), BoundsError, "radius: expected a finite number >= 0, got -1"),
    (lambda: sets.Quadratic(-EYE, ZERO, -1.0), UnsupportedSetError, "P: .* got the eigenvalue -1"),
    (lambda: sets.Quadratic(EYE + EYE.flip(0).triu(1), ZERO, -1.0), UnsupportedSetError, "P: expected a symmetric"),
    (lambda: sets.Quadratic(EYE, ZERO, 1.0), InfeasibleError, "Quadratic: .* got an empty set"),
    (lambda: sets.SecondOrderCone(EYE[:0], ZERO[:0], ZERO, 1.0), ShapeError, "A: expected at least one row"),
    (lambda: sets.LMI(EYE[:0, :0], torch.zeros(2, 0, 0, dtype=D)), ShapeError, "F0: expected a matrix of order 1"),
    (lambda: sets.Quadratic(EYE[:1], ZERO, 1.0), ShapeError, r"P: expected shape \(n, n\)"),
    (lambda: sets.Quadratic(EYE, torch.zeros(3, dtype=D), -1.0), ShapeError, "q: expected shape"),
    (lambda: sets.Quadratic(EYE, ZERO.float(), -1.0), DTypeError, "q: expected the dtype"),
    (lambda: sets.SecondOrderCone(EYE, ZERO, ZERO, -1.0), InfeasibleError, "SecondOrderCone: .* got an empty set"),
    (lambda: sets.SecondOrderCone(ZERO, ZERO, ZERO, 1.0), ShapeError, r"A: expected shape \(k, n\)"),
    (lambda: sets.SecondOrderCone(EYE, torch.zeros(3, dtype=D), ZERO, 1.0), ShapeError, "b: expected shape"),
    (lambda: sets.LMI(EYE, EYE.expand(2, 2, 2).triu() + EYE.flip(0).triu()), UnsupportedSetError, "F: expected a symm"),
    (lambda: sets.LMI(EYE, EYE), ShapeError, r"F: expected shape \(n, 2, 2\)"),
    (lambda: sets.LMI(-EYE, torch.zeros(1, 2, 2, dtype=D)), InfeasibleError, "LMI: .* got an empty set"),
    (lambda: sets.LMI(torch.eye(3, dtype=D), EYE[None]), ShapeError, r"F: expected shape \(n, 3, 3\)"),
    (lambda: SETS["ball"] & sets.Ball(ZERO, 1.0), ShapeError, "members: expected sets of one output dimension"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refusals_at_construction(build, error, message):
    with pytest.raises(error, match=message):
        build()


def of_spectrum(values, seed, dtype):
    """Symmetric matrices ``(*batch, n, n)`` of the given eigenvalues, rounded to dtype."""
    V = torch.linalg.qr(draw(*values.shape, values.shape[-1], seed=seed))[0]
    return (V * values.unsqueeze(-2) @ V.mT).to(dtype)


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in an intersection"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [2, 7])
def test_a_matrix_of_x_is_semidefinite_to_its_rounding_or_refused(n, dtype, mixed):
    """A P(x) with an eigenvalue of ``-32 n eps |P|`` is refused, for its sample alone.

    ``R'R`` of low rank, computed in the dtype, has negative eigenvalues up to about ``n eps |P|`` and is taken.
    """
    values = draw(5, n, seed=1).abs() + 0.1
    values[3, 0] = -32 * n * torch.finfo(dtype).eps * values[3].max()
    raw, root = (2 * draw(5, n, seed=2)).to(dtype), draw(5, 1, n, seed=3).to(dtype)
    q, r = torch.zeros(n, dtype=dtype), torch.tensor(-0.1, dtype=dtype)
    ball = sets.Ball(torch.zeros(n, dtype=dtype), torch.tensor(5.0, dtype=dtype))
    constraint = sets.Quadratic(lambda x: x, q, r) & ball if mixed else sets.Quadratic(lambda x: x, q, r)
    layer, lenient = (HardNetCvx(constraint, on_invalid=policy) for policy in ("raise", "nan"))
    bad = of_spectrum(values, 4, dtype)
    with pytest.raises(ConvexityError, match=r"P: expected a positive semidefinite matrix.* in sample 3") as caught:
        layer(raw, bad)
    assert caught.value.samples == [3]
    good = torch.tensor([0, 1, 2, 4])
    y = lenient(raw, bad)
    assert y.isnan().all(-1).tolist() == [False, False, False, True, False]
    assert torch.equal(y[good], layer(raw[good], bad[good]))
    low = root.mT @ root
    assert check(constraint, layer(raw, low), low).ok


def test_refusals_at_the_call():
    raw = draw(2, 4)
    for name in ("simplex", "ball", "quadratic", "cone", "lmi"):
        with pytest.raises(ShapeError, match="expected shape"):
            SETS[name].numbers(None, raw)
        with pytest.raises(DTypeError, match="dtype of raw"):
            (SETS[name] & SETS["ball"]).numbers(None, raw[:, :N].float())
