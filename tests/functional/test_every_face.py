"""Exported graphs of small sets: the eager layer's answer, also where rows give way, and one for every state."""

import pytest
import torch

import hardnet as hn

D = torch.float64
K = 3


class Numbers(torch.nn.Module):
    """Some numbers of x ``(*batch, count)`` in a shape."""

    def __init__(self, first, shape):
        super().__init__()
        self.first, self.shape = first, shape

    def forward(self, x):
        count = torch.Size(self.shape).numel()
        return x[..., self.first : self.first + count].unflatten(-1, self.shape)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def model_of(n, soft, box=True, **options):
    """A model whose input is raw, A and upper; the rows from 0 to `soft` give way, the others do not."""
    A, upper = Numbers(n, (K, n)), Numbers(n + K * n, (K,))
    parts = [hn.Box(torch.full((n,), -1.0, dtype=D), torch.full((n,), 1.0, dtype=D))] if box else []
    if soft:
        some = hn.Affine(lambda x: A(x)[..., :soft, :], upper=lambda x: upper(x)[..., :soft], name="wanted")
        parts.append(hn.Relaxed(some, weight=[1.0, 10.0, 3.0][:soft]))
    if soft < K:
        parts.append(hn.Affine(lambda x: A(x)[..., soft:, :], upper=lambda x: upper(x)[..., soft:], name="hard"))
    constraint = parts[0]
    for part in parts[1:]:
        constraint = constraint & part
    return hn.HardNet(Numbers(0, (n,)), constraint, "projection", **{"on_infeasible": "nan", **options}).eval()


def exported(model, n):
    x = torch.zeros(8, n + K * n + K, dtype=D)
    return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)).module()


def families(n, samples=64):
    """Numbers that have been hard for one solver or another: raw ``(B, n)``, A ``(B, 3, n)``, upper ``(B, 3)``."""
    raw, A, upper = 2 * draw(samples, n), draw(samples, K, n, seed=1), draw(samples, K, seed=2)
    first = A[:, :1]
    yield "any", raw, A, upper
    yield "copies", raw, torch.cat([first, first, -2 * first], 1), upper.abs()
    yield "contradicting copies", raw, torch.cat([first, -first, first], 1), upper
    for angle in (1e-3, 1e-6, 1e-9, 1e-12):
        yield f"angle {angle}", raw, torch.cat([first, first + angle * A[:, 1:2], A[:, 2:]], 1), upper
    yield "a row of zeros", raw, torch.cat([first, 0 * first, A[:, 2:]], 1), upper
    yield "far away", 1e8 * raw, A, upper
    yield "no bounds", raw, A, torch.where(draw(samples, K, seed=3) < 0, torch.inf, upper)
    yield "a corner", raw, torch.ones_like(A), torch.full_like(upper, -float(n))


SETS = [(1, 3), (2, 2), (3, 0), (3, 3)]


@pytest.mark.parametrize(("n", "soft"), SETS)
def test_the_exported_answer_is_that_of_the_layer(n, soft):
    model = model_of(n, soft)
    graph = exported(model, n)
    assert not [node for node in graph.graph.nodes if "while_loop" in str(node.target)]
    for name, raw, A, upper in families(n):
        x = torch.cat([raw, A.flatten(1), upper], -1)
        y, expected = graph(x), model(x)
        assert (y.isnan() == expected.isnan()).all(), name
        assert bool(y.isfinite().all()) or soft < K, name
        solved = y.isfinite().all(-1)
        rounding = 1e-8 + 4 * torch.finfo(D).eps * raw.abs().max().item()
        torch.testing.assert_close(y[solved], expected[solved], rtol=0, atol=rounding, msg=name)
        assert (y[solved].abs() <= 1).all(), name
        assert hn.check(model.constraint, y[solved], x[solved]).ok, name
        inside = (expected == raw).all(-1)
        assert torch.equal(y[inside], raw[inside]), name
        alone = torch.cat([graph(state) for state in x[:5].split(1)])
        torch.testing.assert_close(alone, y[:5], rtol=0, atol=1e-12, equal_nan=True, msg=name)


def test_bad_numbers_concern_their_own_state():
    model = model_of(2, K)
    x = torch.cat([draw(6, 2), draw(6, 2 * K, seed=1), draw(6, K, seed=2)], -1)
    x[1, 0], x[3, 2], x[4, -1] = torch.nan, torch.inf, torch.nan
    y = exported(model, 2)(x)
    assert y.isnan().all(-1).tolist() == [False, True, False, True, True, False]
    torch.testing.assert_close(y[[0, 2, 5]], model(x[[0, 2, 5]]), rtol=0, atol=1e-9)


def test_the_compromise_of_contradicting_rows():
    """Without a box; beside one, the box of a compromise would not hold, which is said."""
    model = model_of(2, 0, box=False, on_infeasible="nearest")
    graph = exported(model, 2)
    x = torch.cat([draw(64, 2), draw(64, 2 * K, seed=1), draw(64, K, seed=2) - 1], -1)
    torch.testing.assert_close(graph(x), model(x), rtol=0, atol=1e-7)
    assert not hn.check(model.constraint, graph(x), x).ok
    with pytest.raises(hn.errors.HardNetError, match=r"hn\.Relaxed"):
        exported(model_of(2, 0, on_infeasible="nearest"), 2)


def test_what_is_too_large_is_refused_by_name():
    with pytest.raises(hn.errors.UnsupportedSetError, match="rows that give way"):
        exported(model_of(6, K), 6)


def test_onnx_runtime_takes_any_batch(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = model_of(2, K).float()
    x = torch.zeros(8, 2 + 2 * K + K)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    torch.onnx.export(model, (x,), dynamo=True, verbose=False, dynamic_shapes=shapes).save(tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size < 400_000  # bytes; 1.9 MB with a loop
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    for samples in (1, 50):
        x = torch.cat([draw(samples, 2), draw(samples, 2 * K, seed=1), draw(samples, K, seed=2) - 1], -1).float()
        y = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        torch.testing.assert_close(y, model(x), rtol=0, atol=1e-5)
        assert (y.abs() <= 1).all()
        assert hn.check(model.constraint, y, x).ok


def test_the_method_that_auto_takes_is_exported_too():
    constraint = hn.Relaxed(hn.Affine(Numbers(2, (K, 2)), upper=Numbers(8, (K,)), name="rows")) & hn.Box(
        [-1.0, -1.0], [1.0, 1.0]
    )
    model = hn.HardNet(Numbers(0, (2,)), constraint).eval()
    x = draw(9, 11)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)).module()
    for batch in (x, draw(4, 11, seed=1)):
        torch.testing.assert_close(program(batch), model(batch), rtol=0, atol=1e-9)
