"""Enforcement survives shipping: ONNX, distributed training, autocast, higher-order gradients."""

import re
import socket

import pytest
import torch
from torch.autograd.functional import jacobian

import hardnet as hn
from tests.cases import bound_of, matrix_of
from tests.draws import draw


def network(outputs=4):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, outputs))


def constant():
    return hn.Affine(draw(2, 4, seed=2).float(), lower=-0.1, upper=0.1)


def moving():
    return hn.Affine(matrix_of, upper=bound_of)


@pytest.mark.parametrize(("constraint", "method"), [(constant, "auto"), (moving, "auto"), (constant, "cdgm")])
def test_onnx_model_enforces(constraint, method, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = hn.HardNet(network(), constraint(), method=method).eval(), draw(16, 4).float()
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    y = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    assert torch.allclose(y, model(x), rtol=0, atol=1e-5)
    assert hn.check(model.constraint, y, x, tolerance=1e-5).ok
    assert not hn.check(model.constraint, model.net(x), x, tolerance=1e-5).ok


class Numbers(torch.nn.Module):
    """Some numbers of x ``(*batch, k)`` as a core."""

    def __init__(self, first, core):
        super().__init__()
        self.first, self.core = first, core

    def forward(self, x):
        count = torch.Size(self.core).numel()
        return x[..., self.first : self.first + count].unflatten(-1, self.core)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (7, 4), (2, 2), (2, 3)])
def test_onnx_refuses_bad_numbers_and_takes_zero_rows_in_any_unit(m, n, tmp_path):
    """Raw, A and both bounds are inputs: the largest of NaN and a number, and a float64 beyond float32, are traps."""
    onnxruntime = pytest.importorskip("onnxruntime")
    k = n + m * n + 2 * m
    rows = hn.Affine(Numbers(n, (m, n)), lower=Numbers(n + m * n, (m,)), upper=Numbers(n + m * n + m, (m,)))
    model = hn.HardNet(Numbers(0, (n,)), rows, "projection").eval()
    x = torch.cat([2 * draw(k, n), draw(k, m * n, seed=1), -draw(k, m, seed=2).abs(), draw(k, m, seed=3).abs()], -1)
    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.onnx.export(model, (x[:8],), dynamo=True, verbose=False, dynamic_shapes=(batch,))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    run = lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    for bad in (torch.nan, torch.inf, -torch.inf):
        poisoned = torch.where(torch.eye(k, dtype=torch.bool), bad, x)
        y = run(poisoned)
        answered = ~y.isnan().any(-1)
        assert hn.check(rows, y[answered], poisoned[answered]).ok
        assert not answered[: n + m * n].any()
    for unit in (1e-100, 1.0, 1e40, 1e100):
        given = x.clone()
        given[:, n : 2 * n] = 0.0  # the first row
        given[::2, n + m * n] = -torch.inf
        given[::2, n + m * n + m] = torch.inf
        given[:, n:] *= unit
        y = run(given)
        assert not y.isnan().any()
        assert hn.check(rows, y, given).ok


def train_one_rank(rank, port, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(hn.HardNet(network().double(), moving()))
    x, target = draw(16, 4), draw(16, 4, seed=9)
    part = slice(8 * rank, 8 * rank + 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (model(x[part]) - target[part]).square().mean().backward()
        optimizer.step()
    results[rank] = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.distributed.destroy_process_group()


def test_distributed_training_equals_one_process():
    model, x, target = hn.HardNet(network().double(), moving()), draw(16, 4), draw(16, 4, seed=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (model(x) - target).square().mean().backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(train_one_rank, (port, results), nprocs=2)
        assert torch.allclose(results[0], expected, rtol=0, atol=1e-12)
        assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("constraint", [constant, moving, lambda: hn.Affine(draw(6, 4).float(), lower=-0.5, upper=0.5)])
def test_autocast_leaves_enforcement_in_full_precision(constraint):
    model, x = hn.HardNet(network(), constraint()), draw(16, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x, enforce=False).dtype == torch.bfloat16
        y = model(x)
    assert y.dtype == torch.float32
    assert hn.check(model.constraint, y.detach(), x).ok
    y.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_second_derivatives_flow():
    constraint = moving()
    layer = hn.layers.HardNetAff(constraint)
    raw, x = draw(3, 4, seed=4).requires_grad_(), draw(3, 4).requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (raw, x))


def test_hessian_of_a_loss_through_the_model():
    model = hn.HardNet(network().double(), moving())
    x = draw(4)
    hessian = torch.func.hessian(lambda u: model(u).square().sum())(x)
    assert torch.allclose(hessian, hessian.mT, rtol=0, atol=1e-10)
    assert hessian.abs().sum() > 0


ITERATING = {
    "polyhedron": lambda: hn.Affine(draw(6, 4), lower=-0.5, upper=0.5),
    "quadratic": lambda: hn.Quadratic(torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), -0.1),
    "mixed": lambda: hn.Ball(torch.zeros(4, dtype=torch.float64), 0.3) & hn.Box(-0.2, 0.2),
}


TRANSFORMS = {
    "vmap": (lambda model, x: torch.vmap(model)(x), lambda model, x: model(x)),
    "forward mode": (lambda model, x: torch.func.jacfwd(model)(x[0]), lambda model, x: jacobian(model, x[0])),
    "reverse mode": (lambda model, x: torch.func.jacrev(model)(x[0]), lambda model, x: jacobian(model, x[0])),
}
REFUSALS = r"torch\.func: expected (no forward mode through|no transform around)"


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ITERATING)
def test_what_an_iteration_cannot_do_is_refused_in_one_sentence_and_the_rest_is_right(name, transform):
    model, x = hn.HardNet(network().double(), ITERATING[name]()).eval(), 5 * draw(3, 4)
    run, reference = TRANSFORMS[transform]
    try:
        found = run(model, x)
    except hn.errors.UnsupportedSetError as refused:
        found, said = None, str(refused)
    if found is None:
        assert re.match(REFUSALS, said)
        return
    torch.testing.assert_close(found, reference(model, x), rtol=1e-9, atol=1e-9)


def exported(model):
    batch = torch.export.Dim("batch", min=2)
    return torch.export.export(model, (draw(5, 4),), dynamic_shapes=({0: batch},))


def limit_of(x):
    return 0.5 + x.abs()


MOVING = {
    "few rows": moving,
    "a box and a row": lambda: hn.Box(-1.0, 1.0) & hn.Affine(draw(1, 4, seed=2), upper=lambda x: limit_of(x)[..., :1]),
    "a box of x and a row": lambda: hn.Box(-1.0, limit_of) & hn.Affine(draw(1, 4, seed=2), upper=0.2),
    "a box and rows of x": lambda: hn.Box(-1.0, 1.0) & moving(),
}
"""What a graph solves by programs of its own, with numbers that depend on x."""


@pytest.mark.parametrize("name", MOVING)
def test_sets_of_x_are_exported_with_a_dynamic_batch(name):
    model, x = hn.HardNet(network().double(), MOVING[name](), "projection").eval(), draw(5, 4)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    for samples in (1, 9):
        other = draw(samples, 4, seed=samples)
        assert torch.allclose(program(other), model(other), rtol=0, atol=1e-12)


def spread_of(x):
    return 1 + x.abs()


SPD = draw(4, 4, seed=5) @ draw(4, 4, seed=5).mT + torch.eye(4, dtype=torch.float64)
OPTIONS = {
    "strict": {"strict": True},
    "a diagonal metric": {"metric": [1.0, 2.0, 3.0, 4.0]},
    "a matrix": {"metric": SPD},
    "a metric of x": {"metric": spread_of},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_is_exported_with_a_dynamic_batch(options):
    model = hn.HardNet(network().double(), moving(), "projection", **OPTIONS[options]).eval()
    program = exported(model).module()
    for samples in (4, 9):  # as many as outputs: diagonals that look like a matrix
        x = draw(samples, 4, seed=samples)
        torch.testing.assert_close(program(x), model(x), rtol=0, atol=1e-9)


NUMBERS = {
    "rows": lambda: hn.Affine(draw(2, 4, seed=2), lower=-0.1, upper=0.1),
    "rows of x": lambda: hn.Affine(matrix_of, upper=0.1),
    "more rows": lambda: hn.Affine(draw(6, 4, seed=2), lower=-0.1, upper=0.1),
    "a box and a row": lambda: hn.Box(-1.0, 1.0) & hn.Affine(draw(1, 4, seed=2), upper=0.2),
    "a box and rows": lambda: hn.Box(-1.0, 1.0) & hn.Affine(draw(2, 4, seed=2), lower=-0.1, upper=0.1),
    "a box and a row of x": lambda: hn.Box(-1.0, 1.0) & hn.Affine(lambda x: x[..., None, :], upper=0.2),
    "a ball": lambda: hn.Ball(draw(4), 0.5),
    "a simplex": lambda: hn.Simplex(4, 2.0),
}
"""Sets whose bounds, radius or total is one constant number."""
VIEWS = [torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten.unsqueeze.default]


def views_of_views(program):
    """Views of a view of a constant number, which AOTInductor of torch 2.13 does not compile."""
    sizes = {node.target: node.meta["val"].dim() for node in program.graph.nodes if node.op == "placeholder"}
    numbers = [node for node in program.graph.nodes if sizes.get(node.target) == 0]
    views = lambda node: [user for user in node.users if user.target in VIEWS]
    return [second for node in numbers for first in views(node) for second in views(first)]


@pytest.mark.parametrize("name", NUMBERS)
def test_no_graph_views_a_number_twice(name):
    model = hn.HardNet(network().double(), NUMBERS[name]()).eval()
    assert not views_of_views(exported(model).run_decompositions())


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS)
def test_a_library_of_the_graph_enforces(name, tmp_path):
    model, x = hn.HardNet(network().double(), NUMBERS[name]()).eval(), draw(9, 4, seed=9)
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(exported(model), package_path=str(tmp_path / "model.pt2"))
        y = torch._inductor.aoti_load_package(path)(x)
    torch.testing.assert_close(y, model(x), rtol=0, atol=1e-12)


def test_an_iteration_without_a_fixed_program_is_not_exported():
    model, x = hn.HardNet(network().double(), ITERATING["mixed"]()), draw(3, 4)
    with pytest.raises(hn.errors.UnsupportedSetError, match=r"torch\.export: expected a fixed graph, got"):
        torch.export.export(model, (x,))


@pytest.mark.parametrize("name", [name for name in ITERATING if name != "quadratic"])  # tests/functional compiles that
def test_what_iterates_compiles(name):
    model, x = hn.HardNet(network().double(), ITERATING[name]()), draw(3, 4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    y, expected = compiled(x), model(x)
    assert torch.allclose(y, expected, rtol=0, atol=1e-12)
    weight = model.net[0].weight
    found, known = (torch.autograd.grad(part.square().sum(), weight)[0] for part in (y, expected))
    assert torch.allclose(found, known, rtol=0, atol=1e-9)
