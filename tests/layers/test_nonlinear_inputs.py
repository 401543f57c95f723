"""What x may hold: tensors of a sample's own and tensors that all samples share, whatever their sizes."""

import warnings
from math import prod

import pytest
import torch

import hardnet as hn
from hardnet.layers import NonlinearLayer
from tests.nonlinear_problems import F64, real

N = 3
SHARED = {
    "weights": (real([1.0, 2.0, 3.0]), lambda y, w: (y.square() * w).sum(-1, keepdim=True)),
    "matrix": (
        real([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 3.0]]),
        lambda y, w: (y @ w * y).sum(-1, keepdim=True),
    ),
    "centers": (  # a row each, all of them equal to the first one where nothing else is said of y
        real([[0.1, 0.0, 0.0], [0.1, 0.0, 0.0], [0.1, 0.0, 0.0]]),
        lambda y, w: (y.unsqueeze(-2) - w).square().sum((-1, -2), keepdim=False).unsqueeze(-1) / 3,
    ),
    "total": (real([0.2, 0.5, 1.3]), lambda y, w: w.sum() * y.square().sum(-1, keepdim=True)),
    "largest": (real([1.0, 2.0, 5.0]), lambda y, w: w.max() * y.square().sum(-1, keepdim=True)),
    "table": (torch.tensor([2, 1, 0]), lambda y, w: y[..., w[:1]] ** 2 + 2 * y[..., w[2:]] ** 2 + y[..., w[1:2]] ** 2),
}
"""What all samples share, and a function of y that reads it."""
STRUCTURES = {
    "tuple": (lambda own, w: (own, w), lambda x: x),
    "list": (lambda own, w: [w, own], lambda x: (x[1], x[0])),
    "dict": (lambda own, w: {"features": own, "prices": w}, lambda x: (x["features"], x["prices"])),
    "alone": (lambda own, w: w, lambda x: (None, x)),
}
BATCHES = [(), (1,), (2,), (3,), (4,), (3, 3), (3, 2), (2, 3)]


def problem(shared: str, structure: str, batch: tuple[int, ...]):
    """The set that reads x, its x, the same set with the shared tensor as a constant, and raw."""
    w, g = SHARED[shared]
    pack, unpack = STRUCTURES[structure]
    generator = torch.Generator().manual_seed(prod(batch) + 7)
    own = torch.rand(*batch, 1, generator=generator, dtype=F64)
    raw = 2 * torch.randn(*batch, N, generator=generator, dtype=F64)

    def reads(y, x):
        own, w = unpack(x)
        return g(y, w) if own is None else g(y, w) + own / 8

    def knows(y, x):
        return g(y, w) if structure == "alone" else g(y, w) + x / 8

    sets = (hn.Nonlinear(f, dim=N, lower=1.0, upper=1.0) for f in (reads, knows))
    return (*sets, pack(own, w), own, raw)


@pytest.mark.parametrize("mode", ["nearest", "retract"])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("shared", SHARED)
def test_what_all_samples_share_is_never_sliced(shared, structure, mode):
    for batch in BATCHES:
        reads, knows, x, own, raw = problem(shared, structure, batch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = NonlinearLayer(reads, mode=mode)(raw, x)
            expected = NonlinearLayer(knows, mode=mode)(raw, own)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-9, msg=lambda text, b=batch: f"{b}: {text}")
        assert hn.check(reads, y, x, tolerance=1e-9).ok, batch


def test_zero_is_no_place_to_tell_what_is_shared():
    reads, knows, x, own, raw = problem("weights", "tuple", (3,))
    apart = lambda y, x: reads.g(y, x) + (y[..., :1] - 1)
    same = lambda y, x: knows.g(y, x) + (y[..., :1] - 1)
    raw = torch.zeros_like(raw)  # w does not act there
    found = NonlinearLayer(hn.Nonlinear(apart, dim=N, lower=1.0, upper=1.0)).solve(raw, x)
    expected = NonlinearLayer(hn.Nonlinear(same, dim=N, lower=1.0, upper=1.0)).solve(raw, own)
    torch.testing.assert_close(found.y, expected.y, rtol=0, atol=1e-9)
    assert found.status.tolist() == expected.status.tolist()


@pytest.mark.parametrize("shared", ["weights", "matrix"])
@pytest.mark.parametrize("batch", [(), (2,), (3,), (3, 3)], ids=str)
def test_gradients_to_what_is_shared(shared, batch):
    reads, _, x, own, raw = problem(shared, "tuple", batch)
    (own, w), gain = x, torch.arange(1.0, N + 1, dtype=F64)
    learned, point, features = (part.clone().requires_grad_() for part in (w, raw, own))
    (NonlinearLayer(reads)(point, (features, learned)) * gain).sum().backward()
    again, beside, known = (part.clone().requires_grad_() for part in (w, raw, own))
    g = SHARED[shared][1]
    closed = hn.Nonlinear(lambda y, x: g(y, again) + x / 8, dim=N, lower=1.0, upper=1.0)
    (NonlinearLayer(closed)(beside, known) * gain).sum().backward()
    for found, expected in ((learned, again), (point, beside), (features, known)):
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("batch", [(2,), (3,), (5,)], ids=str)
def test_a_function_that_holds_a_tensor_of_the_batch(batch):
    generator = torch.Generator().manual_seed(1)
    w = 1 + torch.rand(*batch, N, generator=generator, dtype=F64)
    raw = torch.randn(*batch, N, generator=generator, dtype=F64) * 2
    raw[0] = raw[0] / (raw[0].square() * w[0]).sum().sqrt()  # already inside: the others go on without it
    holds = hn.Nonlinear(lambda y, x: (y.square() * w).sum(-1, keepdim=True), dim=N, lower=1.0, upper=1.0)
    given = hn.Nonlinear(lambda y, x: (y.square() * x).sum(-1, keepdim=True), dim=N, lower=1.0, upper=1.0)
    torch.testing.assert_close(NonlinearLayer(holds)(raw), NonlinearLayer(given)(raw, w), rtol=0, atol=1e-9)
    centers = 0.1 * torch.randn(*batch, N, generator=generator, dtype=F64)
    ball = NonlinearLayer(given & hn.Ball(centers, 2.0))(raw, w)
    torch.testing.assert_close(ball, NonlinearLayer(given)(raw, w), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
def test_a_function_may_hold_float64_numbers_beside_a_model_of_any_dtype(dtype):
    """g is called in float64 whatever the dtype, and so is it where its rows are counted."""
    P = torch.eye(2, dtype=F64)
    g = lambda y, x: torch.einsum("...i,ij,...j->...", y, P, y).unsqueeze(-1) + 0 * (x @ P[:, :1])
    layer = NonlinearLayer(hn.Nonlinear(g, dim=2, upper=1.0))
    y = layer(torch.tensor([[2.0, 1.0], [0.3, 0.1]], dtype=dtype), torch.ones(2, 2, dtype=dtype))
    assert y.dtype == dtype
    assert (y.double().norm(dim=-1) <= 1 + 2 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("width", [2, 4])
def test_another_width_is_refused_by_name(width):
    layer = NonlinearLayer(hn.Nonlinear(lambda y, x: y * torch.ones(3, dtype=y.dtype), dim=3, upper=1.0))
    with pytest.raises(hn.errors.ShapeError, match="raw: expected shape"):
        layer(torch.ones(4, width))
