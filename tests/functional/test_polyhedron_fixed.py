"""The fixed program: the same answers as the solver under every transform, without reading any value."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import hardnet as hn
from hardnet.errors import UnsupportedSetError
from hardnet.functional import project_affine, solve_affine
from hardnet.solvers import Status
from tests.draws import draw
from tests.solvers.families import F64, FAMILIES, gaussian
from tests.waiting import NoWait

SOLVED_BY_PIVOTS = [name for name in FAMILIES if name not in ("300 rows", "thin", "square 100", "nearly parallel")]


@pytest.mark.parametrize("family", SOLVED_BY_PIVOTS)
def test_the_fixed_program_agrees_with_the_solver(family):
    arguments = FAMILIES[family]()
    y, status, residual = solve_affine(*arguments)
    solved = status == Status.SOLVED
    assert solved.double().mean() >= 0.98
    assert (residual[solved] <= 1e-12).all()
    assert (y - project_affine(*arguments))[solved].abs().max() <= 1e-11


@pytest.mark.parametrize(("row", "out"), [(1e-150, 1e150), (1e150, 1e-150), (1.0, 1e-300), (1e155, 1.0)])
def test_units_do_not_matter(row, out):
    raw, A, lower, upper = gaussian(8, 5, 8)
    y, status, _ = solve_affine(out * raw, row * A, row * (out * lower), row * (out * upper))
    assert (status == Status.SOLVED).all()
    assert torch.allclose(y / out, project_affine(raw, A, lower, upper), rtol=0, atol=1e-12)


def test_bad_samples_are_named_and_leave_the_others_alone():
    raw, A, lower, upper = gaussian(6, 4, 7)
    expected = solve_affine(raw, A, lower, upper)[0]
    raw, A, lower, upper = raw.clone(), A.clone(), lower.clone(), upper.clone()
    raw[0, 0], A[1, 2, 0], lower[2, 0] = torch.nan, torch.inf, 1e9
    A[3, 1], lower[3, 1], upper[3, 1] = A[3, 0], upper[3, 0] + 1, upper[3, 0] + 2
    y, status, _ = solve_affine(raw, A, lower, upper)
    assert status.tolist() == [Status.INVALID] * 3 + [Status.INFEASIBLE] + [Status.SOLVED] * 2
    assert torch.equal(y[4:], expected[4:])
    mapped = torch.func.vmap(project_affine)(raw, A, lower, upper)
    assert mapped[:4].isnan().all()
    assert torch.allclose(mapped[4:], expected[4:], rtol=0, atol=1e-12)


def test_inside_is_kept_bit_for_bit():
    raw, A, lower, upper = gaussian(16, 5, 7)
    y = project_affine(raw, A, lower, upper)
    assert torch.equal(torch.func.vmap(project_affine)(y, A, lower, upper), y)


@pytest.mark.parametrize("roundings", [1, 10, 30, 100, 300, 1000, 3000, 10_000])
def test_a_raw_a_few_roundings_outside_comes_to_the_set(roundings):
    """A row violated by more than 16 roundings of its terms, which a certificate rejects, does not count as inside."""
    raw, A, lower, upper = gaussian(64, 5, 9, shared=True, seed=3)
    off = roundings * torch.finfo(F64).eps * draw(64, 5, seed=4)
    near = project_affine(raw, A, lower, upper) + off
    mapped = torch.func.vmap(lambda point, low, high: project_affine(point, A, low, high))
    for y in (mapped(near, lower, upper), solve_affine(near, A, lower, upper).y):
        assert hn.check(hn.Affine(A, lower=lower, upper=upper), y).ok
        # no farther than the point that it was moved from, to rounding
        room = 64 * torch.finfo(F64).eps * (1 + near.norm(dim=-1))
        assert ((y - near).norm(dim=-1) <= off.norm(dim=-1) + room).all()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("distance", [1.0, 1e8, 1e12, 1e14, 1e16, 1e20, 1e60, 1e150])
def test_what_is_finite_satisfies_its_rows_however_far_raw_is(distance, weighted):
    """A violation that is small relative to raw may be large relative to the set; under vmap no warning is possible."""
    raw, A, lower, upper = gaussian(40, 4, 9)
    W = torch.tensor([1.0, 2.0, 30.0, 0.1], dtype=F64) if weighted else None
    y = torch.func.vmap(lambda *numbers: project_affine(*numbers, metric=W))(distance * raw, A, lower, upper)
    holds = hn.check(hn.Affine(A, lower=lower, upper=upper), y).holds.all(-1)
    assert (holds | y.isnan().any(-1)).all()
    assert holds.all() or distance > 1e7


@pytest.mark.parametrize(("n", "m"), [(3, 2), (2, 4)])
def test_derivatives_of_the_fixed_program_pass_gradcheck(n, m):
    arguments = [part.requires_grad_() for part in gaussian(2, n, m, equalities=0)]
    first = lambda *numbers: solve_affine(*numbers)[0]
    assert gradcheck(first, arguments, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(first, arguments, fast_mode=True)


def test_transforms_of_torch_func():
    raw, A, lower, upper = gaussian(3, 4, 6, equalities=1)
    loss = lambda raw: project_affine(raw, A[0], lower[0], upper[0]).square().sum()
    leaf = raw[0].clone().requires_grad_()
    y = project_affine(leaf, A[0], lower[0], upper[0])
    rows = torch.stack([torch.autograd.grad(y[i], leaf, retain_graph=True)[0] for i in range(4)])
    project = lambda raw: project_affine(raw, A[0], lower[0], upper[0])
    torch.testing.assert_close(torch.func.jacrev(project)(raw[0]), rows, atol=1e-11, rtol=0)
    torch.testing.assert_close(torch.func.jacfwd(project)(raw[0]), rows, atol=1e-11, rtol=0)
    tangent = draw(4, seed=3)
    torch.testing.assert_close(torch.func.jvp(project, (raw[0],), (tangent,))[1], rows @ tangent, atol=1e-11, rtol=0)
    torch.testing.assert_close(torch.func.hessian(loss)(raw[0]), 2 * rows.mT @ rows, atol=1e-10, rtol=0)
    each = torch.func.vmap(torch.func.grad(loss))(raw)
    assert torch.allclose(each[0], torch.func.grad(loss)(raw[0]), rtol=0, atol=1e-12)


def test_compiled_in_one_graph_with_any_batch():
    torch._dynamo.reset()
    compiled = torch.compile(project_affine, fullgraph=True, backend="aot_eager")
    for batch in (5, 8):
        numbers = gaussian(batch, 3, 5)
        for part in numbers:
            torch._dynamo.mark_dynamic(part, 0)
        ours, theirs = ([part.clone().requires_grad_() for part in numbers] for _ in range(2))
        compiled(*ours).square().sum().backward()
        y = project_affine(*theirs)
        y.square().sum().backward()
        assert torch.allclose(compiled(*ours), y, rtol=0, atol=1e-12)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-10)


class Exported(torch.nn.Module):
    """`solve_affine` as a module."""

    def forward(self, raw, A, lower, upper):
        return solve_affine(raw, A, lower, upper, steps=4)


@pytest.mark.parametrize("dtype", [torch.float32])
def test_exported_with_its_certificate(dtype):
    numbers = tuple(part.to(dtype) for part in gaussian(4, 2, 3))
    batch = torch.export.Dim("batch", min=2)
    shapes = tuple({0: batch} for _ in numbers)
    program = torch.export.export(Exported(), numbers, dynamic_shapes=shapes).module()
    other = [part.to(dtype) for part in gaussian(9, 2, 3, seed=5)]
    y, status, residual = program(*other)
    assert (status == Status.SOLVED).all()
    assert residual.max() <= 1e-12
    assert torch.allclose(y, project_affine(*other), rtol=0, atol=1e-12 if dtype == F64 else 1e-6)


def test_onnx_runs_it_without_custom_operators(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    numbers = gaussian(4, 2, 3)
    batch = torch.export.Dim("batch", min=2)
    program = torch.onnx.export(
        Exported(), numbers, dynamo=True, verbose=False, dynamic_shapes=tuple({0: batch} for _ in numbers)
    )
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    other = gaussian(9, 2, 3, seed=5)
    names = [entry.name for entry in session.get_inputs()]
    y, status, _ = session.run(None, {name: part.numpy() for name, part in zip(names, other, strict=True)})
    assert (status == Status.SOLVED).all()
    assert torch.allclose(torch.from_numpy(y), project_affine(*other), rtol=0, atol=1e-12)


def test_a_compromise_is_refused_in_a_fixed_program():
    with pytest.raises(UnsupportedSetError, match="no compromise in a fixed program"):
        torch.func.vmap(lambda raw: project_affine(raw, torch.eye(2, dtype=F64), upper=0.1, on_infeasible="nearest"))(
            draw(3, 2)
        )


@pytest.mark.parametrize(("n", "m"), [(4, 1), (4, 6), (12, 5)])
def test_nobody_looks_where_a_look_is_not_free(monkeypatch, n, m):
    """Simulates a GPU: `may_look` is False, and forward and backward run without reading values on the host."""
    expected, ours = ([part.clone().requires_grad_() for part in gaussian(6, n, m)] for _ in range(2))
    y = project_affine(*expected)
    y.square().sum().backward()
    monkeypatch.setattr("hardnet.rows.may_look", lambda tensor: False)
    monkeypatch.setattr("hardnet.modes.may_look", lambda tensor: False)
    with NoWait():
        found = project_affine(*ours)
        found.square().sum().backward()
    assert torch.allclose(found, y, rtol=0, atol=1e-12)
    for one, other in zip(ours, expected, strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-10)
    lower, upper = torch.tensor([1.0, 3.0], dtype=F64), torch.tensor([2.0, 4.0], dtype=F64)
    empty = project_affine(draw(3, n), torch.ones(2, n, dtype=F64), lower, upper)
    assert empty.isnan().all()


def test_outputs_bounded_by_a_row_of_their_own_are_exactly_inside():
    raw, total = 3 * draw(64, 5), torch.ones(1, dtype=F64)
    A = torch.cat([torch.eye(5, dtype=F64), torch.ones(1, 5, dtype=F64), -torch.eye(5, dtype=F64)])
    free = torch.full((5,), torch.inf, dtype=F64)
    lower, upper = torch.cat([torch.zeros(5), total, -free]), torch.cat([free, total, torch.zeros(5)])
    for y in (solve_affine(raw, A, lower, upper)[0], project_affine(raw, A, lower, upper, metric=draw(5).abs() + 0.1)):
        assert (y >= 0).all()
        assert (y.sum(-1) - 1).abs().max() <= 1e-14


def _blind(monkeypatch):
    """Act as on a GPU, where no value may be read."""
    monkeypatch.setattr("hardnet.rows.may_look", lambda tensor: False)
    return project_affine


def _mapped(_):
    return torch.func.vmap(project_affine)


def _compiled(_):
    return torch.compile(project_affine, fullgraph=True, backend="eager")


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("route", [_blind, _mapped, _compiled])
def test_what_nobody_looks_at_meets_the_certificate_or_is_nan(route, dtype, monkeypatch):
    """This holds however far raw is: a residual relative to raw says nothing about rows near zero."""
    project = route(monkeypatch)
    for seed, far in enumerate([1.0, 1e2, 1e4, 1e8, 1e12, 1e16, 1e30]):
        raw, A, lower, upper = (part.to(dtype) for part in gaussian(128, 10, 40, seed=seed))
        y = project(far * raw, A, lower, upper)
        answered = ~y.isnan().any(-1)
        rows = hn.Affine(A[answered], lower=lower[answered], upper=upper[answered])
        assert hn.check(rows, y[answered]).ok, far
        if far <= 1e4:
            assert answered.double().mean() >= 0.99, far


@pytest.mark.parametrize("route", [_blind, _mapped, _compiled])
@pytest.mark.parametrize("m", [2, 4, 6])
def test_an_empty_set_is_nan_where_nobody_looks(m, route, monkeypatch):
    """The compiler evaluates a comparison of a tensor with an enum member as False, whatever the tensor holds."""
    A = draw(8, m, 4)
    A[:, 1] = A[:, 0]
    lower, upper = torch.full((8, m), -5.0, dtype=F64), torch.full((8, m), 5.0, dtype=F64)
    lower[:4, 0], upper[:4, 1] = 1.0, -1.0
    y = route(monkeypatch)(draw(8, 4, seed=1), A, lower, upper)
    assert y[:4].isnan().all()
    assert hn.check(hn.Affine(A[4:], lower=lower[4:], upper=upper[4:]), y[4:]).ok
