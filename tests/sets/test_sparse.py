"""Sparse constant rows: the answers of dense ones, without a dense matrix anywhere."""

import copy
import pickle

import pytest
import torch

import hardnet as hn
from hardnet.solvers import Status
from hardnet.solvers.polyhedron import sparse_rows
from hardnet.solvers.polyhedron.sparse_rows import prepare_sparse, project_sparse
from tests.draws import draw
from tests.sets.sparse_rows import compressed, differences
from tests.solvers.families import F64

pytest.importorskip("scipy")


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
    center = 0.05 * draw(batch, n, seed=1).cumsum(-1)
    product = center @ A.mT
    room = 0.2 * draw(batch, len(A), seed=2).abs()
    lower, upper = product - room, product + room
    lower[:, -1] = upper[:, -1] = product[:, -1]
    lower[:, 5:9], upper[:, 20:25] = -torch.inf, torch.inf
    return center + draw(batch, n, seed=3), A, lower, upper


def grid(batch=4):
    A = conservation(5)
    b = draw(batch, len(A), seed=4)
    return draw(batch, A.shape[-1], seed=5), A, b, b


def prepared(A):
    A = compressed(A)
    return prepare_sparse(A.crow_indices(), A.col_indices(), A.values(), A.shape[-1])


@pytest.mark.parametrize("family", [ramp, grid], ids=lambda family: family.__name__)
@pytest.mark.parametrize("widest", [sparse_rows.WIDEST, -1.0], ids=["band", "sparse"])
def test_it_is_the_nearest_point_of_dense_rows(family, widest, monkeypatch):
    monkeypatch.setattr(sparse_rows, "WIDEST", widest)
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
