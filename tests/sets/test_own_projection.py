"""Own sets that bring nothing but a projection, joined with others: nearest points, to what tolerance, gradients."""

import pytest
import torch

import hardnet as hn
from tests.cases import CASES, Dome, radius_of
from tests.draws import draw, tensor

F64 = torch.float64
SOLVED, NOT_CONVERGED, INVALID = 0, 2, 3


class Cube(hn.sets.ConstraintSet):
    """``|y - at|_inf <= 1`` by a clamp."""

    projectable = True

    def __init__(self, at=0.0, *, name=None):
        super().__init__(name)
        self.take("at", at, ("n",), "finite")

    def numbers(self, x, like):
        return self.number("at", x, like)

    def residual(self, numbers, y):
        return ((y - numbers).abs().amax(-1, keepdim=True) - 1).clamp_min(0)

    def scale(self, numbers, y):
        return (y.abs() + torch.as_tensor(numbers).abs()).amax(-1, keepdim=True) + 1

    def project(self, numbers, raw):
        return torch.minimum(torch.maximum(raw, numbers - 1), numbers + 1)


class Silent(Cube):
    """A set that says when it holds, and nothing of how it is met."""

    projectable = False


ONES = torch.ones(4, dtype=F64)
ROW, RADIUS = hn.Affine([[1.0, 2.0, -1.0, 0.5]], upper=0.4), 0.9
OWN = {  # each beside the same set in the library's own words
    "ball and box": (lambda: Dome(RADIUS) & hn.Box(-0.5, 0.6), lambda: hn.Ball([0.0] * 4, RADIUS) & hn.Box(-0.5, 0.6)),
    "ball, row, equality": (
        lambda: ROW & Dome(radius_of) & hn.Equality([[1.0] * 4], 0.3),
        lambda: ROW & hn.Ball([0.0] * 4, radius_of) & hn.Equality([[1.0] * 4], 0.3),
    ),
    "two of them": (lambda: Cube(0.4) & Dome(1.2), lambda: hn.Box(-0.6, 1.4) & hn.Ball([0.0] * 4, 1.2)),
    "beside curved and L1": (
        lambda: Cube(lambda x: 0.3 * x[..., :1].tanh() * ONES) & hn.L1Ball([0.0] * 4, 1.5) & hn.Ball([0.2] * 4, 1.0),
        lambda: hn.Box(lambda x: 0.3 * x[..., :1].tanh() - ONES, lambda x: 0.3 * x[..., :1].tanh() + ONES)
        & hn.L1Ball([0.0] * 4, 1.5) & hn.Ball([0.2] * 4, 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_the_nearest_point_is_that_of_the_same_set_in_other_words(name):
    own, known = (make() for make in OWN[name])
    raw, x = 2 * draw(60, 4, seed=1), 0.5 * draw(60, 2, seed=2)
    layer = hn.HardNet(torch.nn.Identity(), own).layer
    expected = hn.HardNet(torch.nn.Identity(), known).layer(raw, x)
    y = layer(raw, x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-7)
    assert hn.check(own, y, x).ok
    assert hn.check(known, y, x, tolerance=1e-9).ok
    found = layer.solve(raw, x)
    assert (found.status == SOLVED).all()
    assert torch.equal(found.y, y)
    pulls = found.dual.unflatten(-1, (-1, 4)).sum(-2)
    torch.testing.assert_close(pulls, raw - y, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", OWN)
def test_solved_means_that_every_projection_leaves_it_where_it_is(name):
    own = OWN[name][0]()
    raw, x = 2 * draw(60, 4, seed=1), 0.5 * draw(60, 2, seed=2)
    found = hn.HardNet(torch.nn.Identity(), own).layer.solve(raw, x)
    for part in own.parts:
        again = hn.HardNet(torch.nn.Identity(), part).layer(found.y, x)
        assert ((again - found.y).norm(dim=-1) <= 1e-10 * found.y.abs().amax(-1)).all()


@pytest.mark.parametrize("name", OWN)
def test_gradients_are_those_of_the_same_set_in_other_words(name):
    own, known = (make() for make in OWN[name])
    raw, x, cotangent = 2 * draw(40, 4, seed=3), 0.5 * draw(40, 2, seed=4), draw(40, 4, seed=5)
    grads = []
    for constraint in (own, known):
        leaf, moved = raw.clone().requires_grad_(), x.clone().requires_grad_()
        y = hn.HardNet(torch.nn.Identity(), constraint).layer(leaf, moved)
        grads.append(torch.autograd.grad(y, (leaf, moved), cotangent, allow_unused=True))
    for mine, other in zip(*grads, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_gradients_by_finite_differences_and_second_ones_refused():
    layer = hn.layers.HardNetCvx(Dome(radius_of) & hn.Box(-0.5, lambda x: (0.2 * x[..., 1:] + 0.6) * ONES[:3]))
    raw, x = (2 * draw(4, 3, seed=6)).requires_grad_(), draw(4, 2, seed=7).requires_grad_()
    assert torch.autograd.gradcheck(layer, (raw, x))
    (first,) = torch.autograd.grad(layer(raw, x).sum(), raw, create_graph=True)
    with pytest.raises(hn.errors.UnsupportedSetError, match="second derivatives"):
        torch.autograd.grad(first.sum(), raw)


def test_what_is_inside_keeps_its_bits_and_mates_change_nothing():
    layer = hn.layers.HardNetCvx(Dome(1.0) & hn.Box(-0.5, 0.6))
    raw = draw(40, 4, seed=8)
    inside = 0.2 * raw.sign()
    assert torch.equal(layer(inside), inside)
    together = layer(torch.cat([raw, inside]))
    assert torch.equal(together[:40], layer(raw))
    assert torch.equal(together[3:4], layer(raw[3:4]))
    assert bool(((together >= -0.5) & (together <= 0.6)).all())  # the library's own members come last


def test_sets_that_never_meet_are_not_solved_and_nobody_says_empty():
    constraint = Dome(1.0) & Cube(lambda x: x) & hn.Box(-9.0, 9.0)
    raw, x = draw(3, 2, seed=9), tensor([0.0, 0.0], [4.0, 4.0], [1.0, 1.0])
    layer = hn.layers.HardNetCvx(constraint)
    assert layer.solve(raw, x).status.tolist() == [SOLVED, NOT_CONVERGED, SOLVED]
    with pytest.raises(hn.errors.ConvergenceError, match="sample 1") as caught:
        layer(raw, x)
    assert caught.value.samples == [1]
    raw.requires_grad_()
    y = hn.layers.HardNetCvx(constraint, on_unsolved="nan")(raw, x)
    assert y.isnan().any(-1).tolist() == [False, True, False]
    y[[0, 2]].sum().backward()
    assert raw.grad.isfinite().all()
    best = hn.layers.HardNetCvx(constraint, on_unsolved="best")(raw, x)
    assert best.isfinite().all()
    assert not hn.check(constraint, best, x).ok


def test_members_of_the_library_that_contradict_each_other_are_proved_empty():
    far = hn.Affine([[1.0, 1.0]], lower=lambda x: x) & hn.Box(-1.0, 1.0) & Dome(5.0)
    raw, x = draw(2, 2, seed=9), tensor([0.0], [4.0])
    with pytest.raises(hn.errors.InfeasibleError, match="sample 1"):
        hn.layers.HardNetCvx(far)(raw, x)
    y = hn.layers.HardNetCvx(far, on_infeasible="nan")(raw, x)
    assert y.isnan().any(-1).tolist() == [False, True]


def test_bad_numbers():
    layer = hn.layers.HardNetCvx(Dome(1.0) & hn.Box(-0.5, 0.5))
    raw = draw(3, 2, seed=10)
    raw[1, 0] = torch.nan
    with pytest.raises(hn.errors.NonFiniteError, match="sample 1"):
        layer(raw)
    y = hn.layers.HardNetCvx(Dome(1.0) & hn.Box(-0.5, 0.5), on_invalid="nan")(raw)
    assert y.isnan().any(-1).tolist() == [False, True, False]
    two = hn.layers.HardNetCvx(Dome(1.0) & Cube(0.0))
    with pytest.raises(hn.errors.NonFiniteError, match="sample 1"):
        two(raw)
    assert two.solve(raw).status.tolist() == [SOLVED, INVALID, SOLVED]


def test_repr_explain_check_and_files_tell_the_tolerance(tmp_path):
    constraint = Dome(1.0, name="dome") & hn.Box([-0.5] * 3, 0.6)
    model = hn.HardNet(torch.nn.Linear(2, 3).double(), constraint)
    for text in (repr(model), str(hn.explain(constraint))):
        assert "alternating" in text
        assert "to tolerance 1e-10" in text
    certificate = hn.check(model, model(draw(5, 2)))
    assert certificate.ok
    assert certificate.promised == 1e-10
    assert "1e-10" in str(certificate)
    hn.save(model, tmp_path / "model")
    again = hn.load(tmp_path / "model", net=torch.nn.Linear(2, 3).double())
    x = draw(5, 2, seed=11)
    assert torch.equal(again(x), model(x))


def test_a_union_with_own_sets():
    constraint = (Dome(1.0) & hn.Box(-0.5, 0.6)) | hn.Box([4.0, 4.0], [5.0, 5.0])
    raw = 4 * draw(50, 2, seed=12)
    y = hn.layers.UnionLayer(constraint)(raw)
    assert hn.check(constraint, y).ok
    assert (hn.layers.UnionLayer(constraint).solve(raw).status == SOLVED).all()


def test_refusals():
    mine, raw = Dome(1.0) & hn.Box(-0.5, 0.6), draw(3, 2)
    with pytest.raises(hn.errors.UnsupportedSetError, match="export"):
        torch.export.export(hn.HardNet(torch.nn.Identity(), mine), (raw,))
    with pytest.raises(hn.errors.UnsupportedSetError, match="transform"):
        torch.func.vmap(hn.layers.HardNetCvx(mine))(raw)
    for other in (hn.Relaxed(hn.Box(-1.0, 1.0)), hn.Cvxpy(lambda y: [y <= 1], 2), Silent(), sparse()):
        joined = Dome(1.0) & other
        assert hn.explain(joined).method is None
        assert str(hn.explain(joined)).startswith("no method enforces this set")
        with pytest.raises(hn.errors.UnsupportedSetError, match="cannot enforce this set"):
            hn.HardNet(torch.nn.Identity(), joined)


class Detached(Cube):
    def project(self, numbers, raw):
        return super().project(numbers, raw.detach())


def test_a_projection_without_a_derivative_is_refused_where_one_is_needed():
    layer, raw = hn.layers.HardNetCvx(Detached(0.0) & hn.Ball([0.0, 0.0], 1.2)), draw(3, 2, seed=13)
    with torch.no_grad():
        assert hn.check(layer.constraint, layer(raw)).ok
    assert hn.check(layer.constraint, layer(raw)).ok
    with pytest.raises(hn.errors.UnsupportedSetError, match="torch can differentiate"):
        layer(raw.requires_grad_())


def sparse():
    return hn.Affine(torch.eye(2, dtype=F64).to_sparse_csr(), upper=1.0)


EXPLAINED = {
    **{case.name: lambda case=case: case.layer().constraint for case in CASES},
    **{f"own: {name}": own for name, (own, _) in OWN.items()},
    "own alone": lambda: Dome(1.0),
    "silent": Silent,
    "silent and a box": lambda: Silent() & hn.Box(-1.0, 1.0),
    "silent or a box": lambda: Silent() | hn.Box(-1.0, 1.0),
    "own and relaxed": lambda: Dome(1.0) & hn.Relaxed(hn.Box(-1.0, 1.0)),
    "own and sparse": lambda: Dome(1.0) & sparse(),
    "sparse and a ball": lambda: hn.Ball([0.0, 0.0], 1.0) & sparse(),
    "program and a box": lambda: hn.Cvxpy(lambda y: [y <= 1], 2) & hn.Box(-1.0, 1.0),
    "matrices and functions": lambda: hn.LMI(torch.eye(2), torch.ones(2, 2, 2)) & functions(),
    "relaxed and functions": lambda: functions() & hn.Relaxed(hn.Box(-1.0, 1.0)),
    "relaxed and a ball": lambda: hn.Ball([0.0, 0.0], 1.0) & hn.Relaxed(hn.Box(-1.0, 1.0)),
    "own or own": lambda: Dome(1.0) | Cube(3.0),
    "a region": lambda: hn.sets.AffineOnRegion(torch.eye(2)),
}


def functions():
    return hn.Nonlinear(lambda y, x: y.square().sum(-1, keepdim=True), dim=2, upper=1.0)


@pytest.mark.parametrize("name", EXPLAINED)
def test_explain_never_names_a_method_that_then_refuses(name):
    constraint = EXPLAINED[name]()
    explained = hn.explain(constraint)
    if explained.method is None:
        with pytest.raises(hn.errors.UnsupportedSetError):
            hn.layers.build_layer(constraint)
    else:
        assert hn.layers.build_layer(constraint).name == explained.method
    for method, reason in explained.reasons.items():
        assert reason.startswith("refused") == (hn.layers.LAYERS[method].refusal(constraint) is not None) or (
            method == "aff" and reason.startswith("refused")
        )
