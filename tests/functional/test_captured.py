"""CUDA graph capture: no option of `projection` and `aff` makes the host wait for a value.

On a CPU the library is told that it may not read values, and every operation that would wait on a GPU (reading a value,
counting non-zeros, factorizations that check themselves or iterate on the host) fails, forward and backward.
"""

from functools import cache

import pytest
import torch

import hardnet as hn
from tests.bounds import assert_within, of_differences, of_factor
from tests.draws import draw
from tests.waiting import NoWait

F64 = torch.float64
TWO, EIGHT = draw(2, 6, seed=1), draw(8, 6, seed=2)


@cache
def placed(rows, device):
    """A constant on the given device, because a capture cannot copy from the host."""
    return {"two": TWO, "eight": EIGHT}[rows].to(device)


def moving(x):
    return placed("two", x.device) + 0.1 * x[..., :1, None]


def few():
    return hn.Affine(moving, upper=lambda x: x[..., :2].abs())


def boxed():
    return hn.Box(-torch.ones(6, dtype=F64), 1.0) & hn.Affine(torch.ones(1, 6, dtype=F64), upper=lambda x: x[..., :1])


def general():
    return hn.Affine(lambda x: placed("eight", x.device) + 0.1 * x[..., :1, None], lower=-1.0, upper=1.0)


def shared():
    """Constant rows, whose factors are kept."""
    A = torch.cat([draw(16, 6, seed=3), draw(1, 6, seed=3)])  # one of them twice
    return hn.Affine(A, lower=-1.0, upper=1.0)


def constant():
    return hn.Affine(draw(3, 6, seed=4), lower=-0.5, upper=0.5)


SETS = {"few": few, "boxed": boxed, "general": general, "shared": shared}
MATRIX = (torch.eye(6) + 0.1).tolist()
OPTIONS = {
    "default": {},
    "tangent": {"gradient": "tangent"},
    "strict": {"strict": True},
    "diagonal metric": {"metric": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]},
    "matrix metric": {"metric": MATRIX},
}
CASES = [("projection", option, name) for option in OPTIONS for name in SETS]
CASES += [("aff", option, name) for option in ("default", "tangent", "strict") for name in ("few", "constant")]


@pytest.mark.parametrize(("method", "option", "name"), CASES)
def test_nothing_waits_for_the_device(method, option, name, blind):
    layer = hn.layers.LAYERS[method]((SETS | {"constant": constant})[name](), **OPTIONS[option])
    raw, x = (3 * draw(20, 6, seed=6)).requires_grad_(), draw(20, 6, seed=7).abs()
    layer(raw, x)  # the first call may wait, since it computes what is kept
    with NoWait():
        y = layer(raw, x)
        (gradient,) = torch.autograd.grad(y.square().sum(), raw)
        found = layer.solve(raw, x) if method == "projection" else None
    if found is not None:  # two methods for the same point, each off by a rounding of raw per step
        steps = 100 * torch.finfo(F64).eps * raw.detach().abs().max().item()
        torch.testing.assert_close(found.y, y.detach(), rtol=0, atol=steps)
    assert hn.check(layer.constraint, y.detach(), x).ok
    assert gradient.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize(("method", "option", "name"), CASES)
def test_a_graph_captures_every_option(method, option, name):
    """Forward, backward and the solution replay to the bits of the eager calls."""
    layer = hn.layers.LAYERS[method]((SETS | {"constant": constant})[name](), **OPTIONS[option]).cuda()
    start, x = (3 * draw(20, 6, seed=6)).cuda(), draw(20, 6, seed=7).abs().cuda()

    def step():
        raw = start.clone().requires_grad_()
        y = layer(raw, x)
        found = layer.solve(start, x).y if method == "projection" else y
        return y, found, *torch.autograd.grad(y.square().sum(), raw)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = [step() for _ in range(2)][-1]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for found, part in zip(captured, expected, strict=True):
        torch.testing.assert_close(found, part, rtol=0, atol=0)


def test_equalities_that_repeat_each_other_have_the_gradient_of_one_of_them(blind):
    """Without reading values: ``(I - A^+ A) g`` for raw, and the copies share the gradient of the right-hand side."""
    A, x, g = draw(5, 12, seed=1), draw(7, 5, seed=2), draw(7, 12, seed=3)
    twice = torch.cat([A, -3 * A[:2]])
    raw, right = draw(7, 12, seed=4).requires_grad_(), torch.cat([x, -3 * x[:, :2]], -1).requires_grad_()
    y = hn.functional.project_affine(raw, twice, lower=right, upper=right)
    to_raw, to_right = torch.autograd.grad(y, (raw, right), g)
    inverse = torch.linalg.pinv(A)
    # the copies are dependent to rounding, which the ridge of 1e-10 limits to eps / ridge
    close = {"rtol": 0, "atol": 100 * torch.finfo(F64).eps / 1e-10}
    torch.testing.assert_close(to_raw, g - g @ (inverse @ A), **close)
    whole = to_right[:, :5].clone()
    whole[:, :2] -= 3 * to_right[:, 5:]
    torch.testing.assert_close(whole, g @ inverse, **close)
    torch.testing.assert_close(to_right[:, :2], -3 * to_right[:, 5:], **close)


@pytest.mark.parametrize("twice", [False, True])
def test_the_shares_of_dependent_rows_are_those_of_the_pseudo_inverse(twice):
    """The tangent gradient adds ``w = (A_J')^+ g`` on the violated rows where w pulls raw back inside."""
    A = draw(17, 6, seed=3)
    A = torch.cat([A, 3 * A[:4]]) if twice else A
    raw, g = (3 * draw(20, 6, seed=6)).requires_grad_(), draw(20, 6, seed=8)
    bound = torch.ones(len(A), dtype=F64)
    bound = torch.cat([bound[:17], 3 * bound[:4]]) if twice else bound
    gradients = []
    for gradient in ("exact", "tangent"):
        y = hn.functional.project_affine(raw, A, upper=bound, gradient=gradient)
        gradients.append(torch.autograd.grad(y, raw, g)[0])
    unit = A / torch.linalg.vector_norm(A, dim=-1, keepdim=True)
    level = bound / torch.linalg.vector_norm(A, dim=-1)
    active = ((y.detach() @ unit.mT - level).abs() < 1e-9) & (raw.detach() @ unit.mT > level)
    rows = torch.where(active.unsqueeze(-1), unit, 0.0)
    w = (torch.linalg.pinv(rows.mT, rtol=1e-7) @ g.unsqueeze(-1)).squeeze(-1)
    inward = (rows.mT @ w.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(gradients[1] - gradients[0], inward, rtol=0, atol=1e-6)


def test_the_closed_form_lets_through_what_pulls_a_violated_row_back_inside():
    """Exact: ``g - A'Dw``, ``w = (A A')^-1 A g``, D the violated rows; tangent omits rows whose w pulls inward."""
    constraint = constant()
    raw, g = (3 * draw(20, 6, seed=6)).requires_grad_(), draw(20, 6, seed=8)
    layers = {name: hn.layers.HardNetAff(constraint, gradient=name) for name in ("exact", "tangent")}
    exact, tangent = (torch.autograd.grad(layers[name](raw), raw, g)[0] for name in ("exact", "tangent"))
    A, value = draw(3, 6, seed=4), raw.detach() @ draw(3, 6, seed=4).mT
    w = torch.linalg.solve(A @ A.mT, (g @ A.mT).mT).mT
    side = (value > 0.5).double() - (value < -0.5).double()
    assert_within(exact, g - torch.where(side != 0, w, 0.0) @ A, of_factor(A), most=1e-9)
    assert_within(tangent, g - torch.where(side * w < 0, w, 0.0) @ A, of_factor(A), most=1e-9)
    assert not torch.allclose(exact, tangent)


@pytest.mark.parametrize(
    ("method", "option", "name"),
    [(method, option, name) for method, option, name in CASES if option != "tangent" and name in SETS],
)
def test_options_under_transforms(method, option, name):
    """Values, derivatives in both modes, and per-sample gradients agree with eager code and finite differences."""
    layer = hn.layers.LAYERS[method](SETS[name](), **OPTIONS[option])
    raw, x, v = 3 * draw(3, 6, seed=6), draw(3, 6, seed=7).abs(), draw(3, 6, seed=8)
    torch.testing.assert_close(torch.vmap(layer)(raw, x), layer(raw, x), rtol=0, atol=1e-9)
    _, along = torch.func.jvp(lambda at: layer(at, x), (raw,), (v,))
    expected = (layer(raw + 1e-6 * v, x) - layer(raw - 1e-6 * v, x)) / 2e-6
    torch.testing.assert_close(along, expected, rtol=0, atol=of_differences(1e-6, raw.abs().max()))
    assert along.abs().max() > 1e-3
    leaf = raw.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(leaf, x).square().sum(), leaf)
    each = torch.vmap(torch.func.grad(lambda at, own: layer(at, own).square().sum()))(raw, x)
    torch.testing.assert_close(each, gradient, rtol=0, atol=1e-9)
