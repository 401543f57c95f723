"""Sparse rows beside boxes and other sets: the answers of dense ones."""

import copy
import pickle

import pytest
import torch

import hardnet as hn
from hardnet.solvers import Status
from tests.draws import draw
from tests.sets.sparse_rows import compressed, differences
from tests.solvers.families import F64

pytest.importorskip("scipy")


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
