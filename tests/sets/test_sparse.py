"""Sparse constant rows: the answers of dense ones, without a dense matrix anywhere."""

import copy
import pickle
import warnings
from fractions import Fraction

import pytest
import torch

import hardnet as hn
from hardnet.solvers import sparse_factor
from hardnet.solvers.solution import Status
from hardnet.solvers.sparse_factor import prepare_sparse
from hardnet.solvers.sparse_rows import project_sparse
from tests.draws import draw
from tests.solvers.families import F64
from tests.solvers.oracles import contradict

pytest.importorskip("scipy")


def compressed(A):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its compressed rows a beta
        return A.to_sparse_csr()


def differences(n):
    return torch.eye(n, dtype=F64)[1:] - torch.eye(n, dtype=F64)[:-1]


def conservation(side):
    """What flows into each node of a grid of side x side, but for one, along its edges."""
    nodes = torch.arange(side * side).view(side, side)
    ends = torch.cat(
        [
            torch.stack([nodes[1:], nodes[:-1]], -1).view(-1, 2),
            torch.stack([nodes[:, 1:], nodes[:, :-1]], -1).view(-1, 2),
        ]
    )
    A = torch.zeros(side * side, len(ends), dtype=F64)
    A[ends[:, 0], torch.arange(len(ends))], A[ends[:, 1], torch.arange(len(ends))] = 1.0, -1.0
    return A[:-1]


def ramp(n=50, batch=6):
    """Rate limits, some of them absent, bounds on some outputs and a total."""
    A = torch.cat([differences(n), torch.eye(n, dtype=F64)[::3], torch.ones(1, n, dtype=F64)])
    centre = 0.05 * draw(batch, n, seed=1).cumsum(-1)
    product = centre @ A.mT
    room = 0.2 * draw(batch, len(A), seed=2).abs()
    lower, upper = product - room, product + room
    lower[:, -1] = upper[:, -1] = product[:, -1]
    lower[:, 5:9], upper[:, 20:25] = -torch.inf, torch.inf
    return centre + draw(batch, n, seed=3), A, lower, upper


def grid(batch=4):
    A = conservation(5)
    b = draw(batch, len(A), seed=4)
    return draw(batch, A.shape[-1], seed=5), A, b, b


def prepared(A):
    A = compressed(A)
    return prepare_sparse(A.crow_indices(), A.col_indices(), A.values(), A.shape[-1])


@pytest.mark.parametrize("family", [ramp, grid], ids=lambda family: family.__name__)
@pytest.mark.parametrize("widest", [sparse_factor.WIDEST, -1.0], ids=["band", "sparse"])
def test_it_is_the_nearest_point_of_dense_rows(family, widest, monkeypatch):
    monkeypatch.setattr(sparse_factor, "WIDEST", widest)
    raw, A, lower, upper = family()
    found = project_sparse(prepared(A), raw, lower, upper)
    assert (found.status == Status.SOLVED).all()
    assert found.residual.max() <= 1e-12
    expected = hn.solvers.project_affine(raw, A, lower, upper)
    torch.testing.assert_close(found.y, expected.y, rtol=0, atol=1e-10)


def test_outputs_with_bounds_of_their_own_hold_exactly():
    raw, A, lower, upper = ramp()
    y = project_sparse(prepared(A), raw, lower, upper).y
    single = slice(49, 66)
    assert (y[:, ::3] >= lower[:, single]).all()
    assert (y[:, ::3] <= upper[:, single]).all()


def test_a_raw_output_inside_keeps_its_bits_and_mates_their_own():
    raw, A, lower, upper = ramp()
    whole = project_sparse(prepared(A), raw, lower, upper)
    raw[1], raw[2], lower[3, 0], upper[3, 0] = torch.nan, whole.y[2], 1.0, -1.0
    again = project_sparse(prepared(A), raw, lower, upper)
    assert torch.equal(again.y[[0, 4, 5]], whole.y[[0, 4, 5]])
    assert torch.equal(again.y[2], raw[2])
    assert again.status.tolist() == [0, 3, 0, 3, 0, 0]


def test_an_empty_set_is_proved():
    raw, A, lower, upper = ramp()
    lower[2, 49], upper[2, 49], lower[2, 50], upper[2, 50] = 9.0, 9.0, -9.0, -9.0  # too far for the ramps between
    found = project_sparse(prepared(A), raw, lower, upper)
    assert found.status.tolist() == [0, 0, 1, 0, 0, 0]


@pytest.fixture
def model():
    A = compressed(torch.cat([differences(30), torch.eye(30, dtype=F64)]))
    return hn.HardNet(torch.nn.Linear(3, 30).double(), hn.Affine(A, lower=-0.2, upper=0.2, name="ramp"))


def test_a_model_enforces_sparse_rows_and_its_certificate_reads_them(model):
    x = draw(8, 3)
    y = model(x)
    certificate = hn.check(model.constraint, y)
    assert certificate.ok
    assert not hn.check(model.constraint, y + 1).ok
    dense = hn.Affine(torch.cat([differences(30), torch.eye(30, dtype=F64)]), lower=-0.2, upper=0.2)
    nearest = hn.HardNet(model.net, dense, method="projection")
    torch.testing.assert_close(y, nearest(x), rtol=0, atol=1e-11)
    grads = [torch.autograd.grad(one(x).square().sum(), model.net.weight)[0] for one in (model, nearest)]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)
    assert list(model.constraint.state_dict()) == ["crow", "col", "values", "lower", "upper"]


def test_copies_moves_and_files_keep_it(model, tmp_path):
    x = draw(8, 3)
    y = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), y)
    other = copy.deepcopy(model)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), y)
    short = copy.deepcopy(model).float()
    assert hn.check(short.constraint, short(x.float())).ok
    hn.save(model, tmp_path / "model.safetensors", example=x)
    again = hn.load(tmp_path / "model.safetensors", torch.nn.Linear(3, 30).double())
    assert torch.equal(again(x), y)


def test_a_checkpoint_of_other_rows_is_refused(model):
    other = hn.Affine(compressed(torch.eye(30, dtype=F64).flip(0)), lower=-0.2, upper=0.2)
    with pytest.raises(hn.errors.StateError):
        model.constraint.load_state_dict(other.state_dict())


def test_gradients_reach_bounds_that_depend_on_x():
    A = compressed(torch.cat([differences(8), torch.ones(1, 8, dtype=F64)]))
    equality = hn.Equality(compressed(torch.ones(1, 8, dtype=F64)), lambda x: x[..., :1])
    limits = hn.Affine(A, lower=lambda x: -x, upper=lambda x: x)
    x = (0.3 + 0.1 * draw(3, 8).abs()).requires_grad_()
    raw = draw(3, 8, seed=2).requires_grad_()
    for constraint in (equality, limits):
        layer = hn.HardNet(torch.nn.Identity(), constraint).layer
        assert torch.autograd.gradcheck(layer, (raw, x))


def test_what_it_cannot_do_it_refuses(model):
    A = torch.eye(4, dtype=F64)
    with pytest.raises(hn.errors.DTypeError, match="to_sparse_csr"):
        hn.Affine(A.to_sparse_coo(), upper=1.0)
    with pytest.raises(hn.errors.UnsupportedSetError, match="dense affine rows; use method='auto'"):
        hn.HardNet(model.net, model.constraint, method="aff")
    with pytest.raises(hn.errors.UnsupportedSetError, match="sparse rows"):
        torch.func.vmap(model.layer)(draw(2, 30))
    with pytest.raises(hn.errors.UnsupportedSetError, match="columns"):
        hn.scaled(model.constraint, 0.0, 2.0)
    with pytest.raises(hn.errors.NonFiniteError):
        model.layer(draw(2, 30).fill_(torch.nan))
    low, high = (torch.tensor([here] * 4 + [there] * 4, dtype=F64) for here, there in ((1.0, -3.0), (2.0, -1.0)))
    empty = hn.Affine(compressed(torch.cat([A, A])), lower=low, upper=high)
    with pytest.raises(hn.errors.InfeasibleError):
        hn.HardNet(torch.nn.Identity(), empty).layer(draw(2, 4))


def boxed(n=20, m=7, seed=0, batch=5):
    """Sparse rows and limits of the outputs around a common point, some rows equalities, some bounds absent."""
    A = torch.where(draw(m, n, seed=seed).abs() > 1.0, draw(m, n, seed=seed + 1), 0.0)
    A[:, 0] = 1.0
    point = draw(n, seed=seed + 2)
    room, limit = draw(m, seed=seed + 3).abs(), draw(n, seed=seed + 4).abs()
    room[::3] = 0.0
    lower, upper = A @ point - room, A @ point + room
    upper[1::3] = torch.inf
    return point + 3 * draw(batch, n, seed=seed + 5), A, lower, upper, point - limit, point + limit


SPARSE_SETS = {
    "box & sparse": lambda A, lower, upper, low, high: hn.Box(low, high) & hn.Affine(A, lower=lower, upper=upper),
    "sparse & box": lambda A, lower, upper, low, high: hn.Affine(A, lower=lower, upper=upper) & hn.Box(low, high),
    "sparse & sparse": lambda A, lower, upper, low, high: (
        hn.Affine(A, lower=lower, upper=upper)
        & hn.Affine(compressed(torch.eye(len(low), dtype=F64)), lower=low, upper=high)
    ),
    "dense & sparse": lambda A, lower, upper, low, high: (
        hn.Affine(torch.eye(len(low), dtype=F64), lower=low, upper=high) & hn.Affine(A, lower=lower, upper=upper)
    ),
    "three members": lambda A, lower, upper, low, high: (
        hn.Box(low) & hn.Affine(A, lower=lower, upper=upper) & hn.Box(upper=high)
    ),
}


@pytest.mark.parametrize("build", SPARSE_SETS.values(), ids=SPARSE_SETS)
@pytest.mark.parametrize("seed", range(4))
def test_sparse_rows_beside_others_are_those_of_a_dense_set(build, seed):
    raw, A, lower, upper, low, high = boxed(seed=10 * seed)
    raw.requires_grad_()
    constraint = build(compressed(A), lower, upper, low, high)
    dense = hn.Box(low, high) & hn.Affine(A, lower=lower, upper=upper)
    y = hn.HardNet(torch.nn.Identity(), constraint)(raw)
    nearest = hn.HardNet(torch.nn.Identity(), dense, method="projection")(raw)
    torch.testing.assert_close(y, nearest, rtol=0, atol=1e-10)
    certificate = hn.check(dense, y)
    assert certificate.ok
    assert certificate.exact_box.all()
    assert hn.check(constraint, y).ok
    assert not hn.check(constraint, y + 0.1).satisfied.any()
    grads = [torch.autograd.grad(one.square().sum(), raw)[0] for one in (y, nearest)]
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


def test_a_simplex_beside_sparse_rows():
    A = compressed(differences(9))
    constraint = hn.Simplex(9) & hn.Affine(A, lower=-0.05, upper=0.05)
    y = hn.HardNet(torch.nn.Identity(), constraint)(3 * draw(4, 9))
    assert hn.check(constraint, y).ok
    assert (y >= 0).all()


def test_numbers_of_members_beside_sparse_rows_may_depend_on_x():
    """Bounds of all members receive gradients, and batches of one spread."""
    A = compressed(differences(4))
    constraint = hn.Box(lambda x: -x, lambda x: x) & hn.Affine(A, lower=-0.1, upper=0.1)
    layer = hn.HardNet(torch.nn.Identity(), constraint).layer
    raw, x = draw(2, 4, seed=1).requires_grad_(), (0.3 + 0.1 * draw(2, 4).abs()).requires_grad_()
    assert torch.autograd.gradcheck(layer, (raw, x))
    assert torch.equal(layer(raw[:1], x[:1]), layer(raw, x)[:1])


def test_files_copies_and_moves_keep_sparse_rows_beside_others(tmp_path):
    raw, A, lower, upper, low, high = boxed()
    model = hn.HardNet(
        torch.nn.Linear(20, 20).double(), SPARSE_SETS["box & sparse"](compressed(A), lower, upper, low, high)
    )
    y = model(raw)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(raw), y)
    hn.save(model, tmp_path / "model", example=raw)
    assert torch.equal(hn.load(tmp_path / "model", torch.nn.Linear(20, 20).double())(raw), y)
    short = copy.deepcopy(model).float()
    certificate = hn.check(short.constraint, short(raw.float()))
    assert certificate.ok
    assert certificate.exact_box.all()


def test_sparse_rows_that_contradict_a_box_are_named():
    A = compressed(torch.ones(1, 4, dtype=F64))
    constraint = hn.Box(0.0, 1.0, name="limits") & hn.Equality(A, lambda x: x, name="total")
    layer = hn.HardNet(torch.nn.Identity(), constraint).layer
    with pytest.raises(hn.errors.InfeasibleError) as caught:
        layer(draw(2, 4), torch.tensor([[1.0], [9.0]], dtype=F64))
    assert caught.value.samples == [1]
    assert caught.value.names == [["limits[0]", "limits[1]", "limits[2]", "limits[3]", "total"]]


def test_what_cannot_stand_beside_sparse_rows_is_refused_with_what_works():
    A = torch.ones(1, 3, dtype=F64)
    sparse, moving = hn.Affine(compressed(A), upper=1.0), hn.Affine(lambda x: x.unsqueeze(-2), upper=1.0)
    for other in (hn.Ball(torch.zeros(3, dtype=F64), 2.0), hn.Relaxed(hn.Affine(A, lower=0.0)), moving):
        with pytest.raises(hn.errors.UnsupportedSetError, match="to_dense"):
            hn.HardNet(torch.nn.Identity(), sparse & other)
        hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A).to_dense(), upper=1.0) & other)


@pytest.mark.parametrize("unit", [1.0, 1e-18, 1e12])
@pytest.mark.parametrize("size", [1.0, 1e-8, 1e7])
def test_what_is_solved_passes_the_certificate_of_dense_rows(unit, size):
    """In any units of outputs and rows, far away, near, and a few roundings outside; what does not is warned of."""
    warned = 0
    for seed in range(12):
        raw, A, lower, upper, low, high = boxed(n=8, m=6, seed=7 * seed)
        A, lower, upper, low, high = size * A, unit * size * lower, unit * size * upper, unit * low, unit * high
        constraint = hn.Box(low, high) & hn.Affine(compressed(A), lower=lower, upper=upper)
        layer = hn.layers.HardNetCvx(constraint)
        dense = hn.Box(low, high) & hn.Affine(A, lower=lower, upper=upper)
        first = layer.solve(unit * raw)
        near = first.y * (1 + 1e-14 * draw(*raw.shape, seed=seed))  # about where the slack of the solver ends
        for found in (first, layer.solve(near)):
            solved = found.status == Status.SOLVED
            warned += int((~solved).sum())
            certificate = hn.check(dense, found.y[solved])
            assert certificate.ok, str(certificate)
            assert certificate.exact_box.all()
    assert warned <= 6  # of 120


@pytest.mark.parametrize("batch", [(), (7,), (2, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_the_certificate_of_sparse_rows_is_not_fooled_by_cancellation(seed, batch):
    """Terms of 1e17 that cancel but for about 1: the exact violation is within `rounding` of what it says."""
    source = torch.Generator().manual_seed(seed)
    A = torch.randint(-3, 4, (6, 12), generator=source).double() * (torch.rand(6, 12, generator=source) < 0.5)
    A[:, 1::2] = A[:, 0::2]
    A[0], A[5] = 0.0, 1.0  # a row of none, and one of all entries
    y = torch.randn(*batch, 12, generator=source, dtype=torch.float64) * 10.0 ** torch.arange(17, 5, -1)
    y[..., 1:12:2] = -y[..., 0:12:2] + torch.randn(*batch, 6, generator=source, dtype=torch.float64)
    lower, upper = -torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    found = hn.check(hn.Affine(A.to_sparse_csr(), lower=lower, upper=upper), y)
    assert (found.rounding <= 1e-9 * (1 + found.violation)).all()
    for point, said, rounding in zip(
        *(t.reshape(-1, t.shape[-1]) for t in (y, found.violation, found.rounding)), strict=True
    ):
        for row in range(6):
            value = sum(
                (Fraction(a) * Fraction(b) for a, b in zip(A[row].tolist(), point.tolist(), strict=True)), Fraction(0)
            )
            exact = max(value - 1, -1 - value, 0)
            assert abs(Fraction(said[row].item()) - exact) <= Fraction(rounding[row].item())


def test_what_is_not_finite_violates_sparse_rows():
    constraint = hn.Affine(torch.eye(3, dtype=torch.float64).to_sparse_csr(), upper=1.0)
    y = torch.tensor([[0.0, torch.inf, 0.0], [torch.nan, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert hn.check(constraint, y).satisfied.tolist() == [False, False, True]


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e-155, 1.0, 1e155, 1e170, 1e300])
def test_rows_of_any_size_are_those_of_size_one(unit):
    A, upper = differences(4), torch.tensor([0.5, -1.0, 0.25], dtype=F64)
    raw = 3 * draw(5, 4)
    model = hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A * unit), upper=upper * unit))
    y = model(raw)
    assert hn.check(model.constraint, y).ok
    expected = hn.functional.project_affine(raw, A, upper=upper)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-13 * raw.abs().max().item())  # the length of a row rounds


@pytest.mark.parametrize("angle", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10])
def test_nearly_antiparallel_rows_are_never_called_empty(angle):
    """``y_1 <= 0`` and ``y_1 + angle y_2 >= 1`` meet at (0, 1 / angle), which is found or warned of."""
    A = torch.tensor([[1.0, 0.0], [-1.0, -angle]], dtype=F64)
    model = hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A), upper=torch.tensor([0.0, -1.0], dtype=F64)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = model(torch.zeros(1, 2, dtype=F64))
    if angle >= 1e-5:
        assert not said
        expected = torch.tensor([[0.0, 1 / angle]], dtype=F64)
        # K of two rows, whose smaller eigenvalue is angle^2 / 2, meets multipliers of 1 / angle^2 to rounding, and
        # y_2 is angle times what these are off: 2 eps / angle^3 in all
        torch.testing.assert_close(y, expected, rtol=0, atol=2 * torch.finfo(F64).eps / angle**3)
    else:
        assert [one.category for one in said] == [hn.errors.NotConvergedWarning]


@pytest.mark.parametrize("seed", range(8))
def test_rows_called_empty_contradict_each_other_by_themselves(seed):
    """Rows on some outputs each, the last a sum of two others whose bounds exclude it."""
    A = draw(6, 5, seed=seed) * (draw(6, 5, seed=seed + 50) > -0.2)
    A[5] = A[0] + A[1]
    upper = 1 + draw(6, seed=seed + 100).abs()
    lower = torch.full_like(upper, -torch.inf)
    lower[5], upper[5] = upper[0] + upper[1] + 0.5, torch.inf
    model = hn.HardNet(torch.nn.Identity(), hn.Affine(compressed(A), lower=lower, upper=upper))
    with pytest.raises(hn.errors.InfeasibleError) as caught:
        model(draw(2, 5, seed=seed))
    for rows in caught.value.rows:
        assert set(rows) == {0, 1, 5}
        assert contradict(A[rows], lower[rows], upper[rows])


def test_a_matrix_without_entries_is_judged():
    A = compressed(torch.zeros(2, 3, dtype=F64))
    constraint = hn.Affine(A, upper=torch.zeros(2, dtype=F64))
    assert hn.check(constraint, draw(4, 3)).ok
    broken = hn.check(hn.Affine(A, upper=torch.tensor([0.0, -1e-9], dtype=F64)), draw(4, 3))
    assert broken.violation.tolist() == [[0.0, 1e-9]] * 4


@pytest.mark.parametrize("seed", [0, 20, 280, 650, 1160, 2270])
def test_a_solved_sample_is_raw_less_its_rows_times_their_multipliers(seed):
    """A duplicate of an equality, and bounds that touch: multipliers grow, and must not cost y more than it says.

    What a sample is off, in exact arithmetic: 1e-9 of its size makes it solved, by `SOLVED`.
    """
    n, m = 12, 10
    A = torch.where(draw(m, n, seed=seed).abs() > 1.2, draw(m, n, seed=seed + 1), 0.0)
    A[:, 0] += 0.5
    A[-1] = 3 * A[0]
    point = draw(n, seed=seed + 2)
    value = A @ point
    upper = torch.where(draw(m, seed=seed + 6) > -0.5, value + draw(m, seed=seed + 3).abs(), value)
    lower = torch.where(draw(m, seed=seed + 7) > -0.5, value - draw(m, seed=seed + 4).abs(), value)
    lower[:6] = upper[:6] = value[:6]
    upper[-1] = value[-1]
    raw = point + 10 * draw(4, n, seed=seed + 5)
    constraint = hn.Box(point - 1, point + 1) & hn.Affine(compressed(A), lower=lower, upper=upper)
    found = hn.HardNet(torch.nn.Identity(), constraint).layer.solve(raw)
    rows = torch.cat([torch.eye(n, dtype=F64), A])
    for y, dual, own in zip(found.y, found.dual, raw, strict=True):
        if bool(y.isfinite().all()):
            for j in range(n):
                terms = (Fraction(a) * Fraction(w) for a, w in zip(rows[:, j].tolist(), dual.tolist(), strict=True))
                off = Fraction(own[j].item()) - sum(terms) - Fraction(y[j].item())
                assert abs(off) <= 1e-9 * max(1.0, own.abs().max().item(), y.abs().max().item())
