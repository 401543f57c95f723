"""Appendix B of the paper: equalities solved for a block of outputs, the rest enforced."""

import pytest
import torch

import hardnet as hn
from tests.draws import draw

D = torch.float64


def rows_of_x(x):
    """A (*batch, 2, 5)."""
    return draw(2, 5, seed=1) + 0.1 * torch.sin(x[..., :1]).unsqueeze(-1)


def equalities_of_x(x):
    """C (*batch, 2, 5), the first two columns well conditioned for every x."""
    C = draw(2, 5, seed=2) + torch.cat([4 * torch.eye(2, dtype=D), torch.zeros(2, 3, dtype=D)], -1)
    return C.expand(*x.shape[:-1], 2, 5)


def first_two(x):
    return x[..., :2]


def moving():
    return hn.Equality(equalities_of_x, first_two) & hn.Affine(rows_of_x, upper=first_two)


def test_known_answer():
    constraint = hn.Equality(torch.ones(1, 3, dtype=D), 1.0) & hn.Affine(
        torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=D), upper=torch.tensor([0.5, 0.2], dtype=D)
    )
    layer = hn.layers.HardNetEq(constraint, completed=[0])
    y = layer(torch.tensor([[0.7, 0.1]], dtype=D))
    assert torch.allclose(y, torch.tensor([[0.4, 0.5, 0.1]], dtype=D), rtol=0, atol=1e-15)


def test_proposition_3():
    """The equalities hold, and each row keeps its value where it held and moves to its bound where it did not."""
    layer = hn.layers.HardNetEq(moving(), completed=[0, 1], dim=5)
    x, raw = draw(200, 3), 3 * draw(200, 3, seed=4)
    y = layer(raw, x)
    A, C = rows_of_x(x), equalities_of_x(x)
    d = b = first_two(x)
    assert torch.allclose((C @ y.unsqueeze(-1)).squeeze(-1), d, rtol=0, atol=1e-12)
    block, rest = C[..., :2], C[..., 2:]
    solved = torch.linalg.solve(block, (d.unsqueeze(-1) - rest @ raw.unsqueeze(-1))).squeeze(-1)
    before = (A @ torch.cat([solved, raw], -1).unsqueeze(-1)).squeeze(-1)
    after = (A @ y.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(after, torch.minimum(before, b), rtol=0, atol=1e-11)
    assert ((before > b) & (after < before)).any()


def test_the_same_map_as_the_paper_writes_it():
    layer = hn.layers.HardNetEq(moving(), completed=[0, 1], dim=5)
    x, raw = draw(50, 3), 3 * draw(50, 3, seed=4)
    A, C, d = rows_of_x(x), equalities_of_x(x), first_two(x)
    inverse = torch.linalg.inv(C[..., :2])
    reduced = A[..., 2:] - A[..., :2] @ inverse @ C[..., 2:]
    bound = d - (A[..., :2] @ inverse @ d.unsqueeze(-1)).squeeze(-1)
    excess = ((reduced @ raw.unsqueeze(-1)).squeeze(-1) - bound).clamp_min(0)
    free = raw - (torch.linalg.pinv(reduced) @ excess.unsqueeze(-1)).squeeze(-1)
    solved = (inverse @ (d.unsqueeze(-1) - C[..., 2:] @ free.unsqueeze(-1))).squeeze(-1)
    assert torch.allclose(layer(raw, x), torch.cat([solved, free], -1), rtol=0, atol=1e-11)


def test_columns_are_chosen_by_pivoting():
    C = torch.tensor([[1e-9, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0 + 1e-9, 3.0]], dtype=D)
    layer = hn.layers.HardNetEq(hn.Equality(C, torch.ones(2, dtype=D)))
    assert layer.raw_dim == 2
    assert sorted(layer.completed.tolist()) in ([1, 3], [2, 3])
    assert hn.check(layer.constraint, layer(draw(20, 2))).ok


def example_rows(x):
    return torch.cat([x, x - 1], -1).unsqueeze(-2)


def test_the_example_without_one_good_column():
    """[x, x - 1] y = 1 has no column that works at both x = 0 and x = 1; the closed form with rows does."""
    constraint = hn.Equality(example_rows, 1.0)
    x, raw = torch.tensor([[0.0], [0.5], [1.0]], dtype=D), torch.zeros(3, 1, dtype=D)
    with pytest.raises(hn.errors.RankError, match=r"columns \[0\] .* sample 0; complete other columns") as caught:
        hn.layers.HardNetEq(constraint, completed=[0], dim=2)(raw, x)
    assert caught.value.samples == [0]
    with pytest.raises(hn.errors.RankError, match=r"columns \[1\] .* sample 2"):
        hn.layers.HardNetEq(constraint, completed=[1], dim=2)(raw, x)
    quiet = hn.layers.HardNetEq(constraint, completed=[0], dim=2, on_invalid="nan")(raw, x)
    assert quiet.isnan().any(-1).tolist() == [True, False, False]
    everywhere = hn.layers.HardNetAff(constraint)(torch.zeros(3, 2, dtype=D), x)
    assert hn.check(constraint, everywhere, x).ok


def test_lipschitz_bound_of_the_universal_approximation_proof():
    layer = hn.layers.HardNetEq(moving(), completed=[0, 1], dim=5)
    x = draw(300, 3)
    target, raw = layer(draw(300, 3, seed=6), x), 2 * draw(300, 3, seed=7)
    A, C = rows_of_x(x), equalities_of_x(x)
    slope = torch.linalg.solve(C[..., :2], C[..., 2:])
    reduced = A[..., 2:] - A[..., :2] @ slope
    singular = torch.linalg.svdvals(reduced)
    constant = (1 + singular[:, 0] / singular[:, -1]) * (1 + torch.linalg.matrix_norm(slope, 2) ** 2).sqrt()
    distance = (layer(raw, x) - target).norm(dim=-1)
    assert (distance <= constant * (raw - target[..., 2:]).norm(dim=-1) + 1e-10).all()


def test_gradients_reach_the_input():
    layer = hn.layers.HardNetEq(moving(), completed=[0, 1], dim=5)
    raw, x = draw(3, 3, seed=4).requires_grad_(), draw(3, 3).requires_grad_()
    assert torch.autograd.gradcheck(layer, (raw, x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: hn.layers.HardNetEq(hn.Affine(draw(2, 4), lower=0.0)),
            r"no hn.Equality to solve for; write .* as hn.Equality\(A, b\), or use method='projection'",
        ),
        (lambda: hn.layers.HardNetEq(moving()), "cannot choose columns of a C that depends on x"),
        (lambda: hn.layers.HardNetEq(hn.Equality(draw(1, 4).repeat(2, 1), 0.0)), "linearly independent"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()
