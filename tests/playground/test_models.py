"""The playground's trained models: the committed graphs are the torch modules, in Python and in the browser."""

import importlib.util
import json
import sys

import pytest
import torch

import hardnet as hn
from hardnet_lab.problems import PROBLEMS
from hardnet_lab.problems.barrier import nominal_control
from hardnet_lab.problems.unicycle import Rollout
from tests.playground.browser import PAGE, Page

NAMES = ["pwc", "cbf"]
TOLERANCE = 1e-5


def tool(name):
    """A script of the playground as a module."""
    described = importlib.util.spec_from_file_location(name, PAGE / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(described)  # dataclasses look themselves up there
    described.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make_models():
    return tool("make_models")


@pytest.fixture(scope="module")
def shipped(make_models):
    """The torch modules with the weights that the committed graphs hold."""
    onnx = pytest.importorskip("onnx")

    def load(name):
        model = make_models.shipped(name)
        graph = onnx.load(PAGE / "models" / f"{name}.onnx").graph
        weights = {tensor.name: torch.tensor(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
        own = dict(model.named_parameters())
        assert own.keys() <= weights.keys()
        with torch.no_grad():
            for key, parameter in own.items():
                parameter.copy_(weights[key])
        return model

    return {name: load(name) for name in NAMES}


def inputs(name, seed=3):
    """Test inputs of the problem, moving states among them, and pushes from none to large."""
    problem, stream = PROBLEMS[name](), torch.Generator().manual_seed(seed)
    x = problem.test[:60].clone()
    if name == "cbf":
        x[20:, 0] += 3 * torch.rand(40, generator=stream, dtype=x.dtype)
        x[20:, 3:] = 3 * torch.randn(40, 2, generator=stream, dtype=x.dtype)
    push = torch.randn(60, problem.output_dim, generator=stream) * torch.linspace(0, 20, 60)[:, None]
    return x.float(), push


def agree(found, expected):
    """Both outputs to 1e-5 of the largest number in the sample."""
    for ours, theirs in zip(found, expected, strict=True):
        size = torch.cat([*expected, torch.ones(len(theirs), 1)], -1).abs().amax(-1, keepdim=True)
        assert ((ours - theirs).abs() <= TOLERANCE * size).all(), ((ours - theirs).abs() / size).max()


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_graph_is_the_torch_module_and_enforces(name, shipped):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(PAGE / "models" / f"{name}.onnx")
    x, push = inputs(name)
    for part in (slice(0, 1), slice(0, 60)):
        found = session.run(["raw", "y"], {"x": x[part].numpy(), "push": push[part].numpy()})
        agree([torch.from_numpy(value) for value in found], shipped[name](x[part], push[part]))
    constraint = PROBLEMS[name]().constraint
    assert hn.check(constraint, torch.from_numpy(found[1]), x, tolerance=1e-3).ok
    assert not hn.check(constraint, torch.from_numpy(found[0]), x, tolerance=1e-3).ok


def test_the_stamp_says_where_the_graphs_come_from(make_models):
    stamp = json.loads((PAGE / "models" / "models.json").read_text())
    assert {"command", "revision", "versions", "device", "date"} <= stamp.keys()
    assert stamp["seed"] == make_models.SEED
    for name, recipe in make_models.RECIPES.items():
        about = stamp["models"][name]
        assert (about["method"], about["epochs"]) == (recipe.method, recipe.epochs)
        content = (PAGE / "models" / f"{name}.onnx").read_bytes()
        assert b"site-packages" not in content
        assert b"stack_trace" not in content


def test_training_hands_its_weights_over(make_models):
    model, about = make_models.train("pwc", epochs=2)
    x = PROBLEMS["pwc"]().test
    raw, y = model(x.float(), torch.zeros(401, 1))
    assert about["test"]["mse"] == pytest.approx((y - make_target(x)).square().mean().item(), rel=1e-4)
    assert not torch.equal(raw, y)


def make_target(x):
    return PROBLEMS["pwc"]().target(x)


@pytest.fixture(scope="module")
def models(browser, files):
    """The second tab, its models loaded once for all tests; skips where the runtime was not fetched."""
    if not (PAGE / "runtime" / "ort.mjs").exists():
        pytest.skip("onnxruntime-web is not there (python docs/playground/fetch_runtime.py fetches it with npm)")
    page = Page(browser, files.address, "#trained")
    page.run("const m = await playground.models(); await m.cbf.ready; await m.pwc.ready")
    yield page
    page.expect_calm()
    assert all((PAGE / path.split("?")[0].lstrip("/")).is_file() for path in files.asked)


@pytest.mark.parametrize("name", NAMES)
def test_the_browser_runs_the_graph_as_torch_does(models, shipped, name):
    x, push = inputs(name)
    script = "return (await playground.models()).models[arguments[0]].run(arguments[1], arguments[2])"
    found = models.run(script, name, x.tolist(), push.tolist())
    agree([torch.tensor(found[key]) for key in ("raw", "y")], shipped[name](x, push))


def test_the_page_checks_with_the_constraint_of_the_library(models):
    x, _ = inputs("cbf")
    x = x.double()
    script = """
        const {barriers, nominal} = await import("./js/unicycle.js");
        return arguments[0].map((state) => ({rows: barriers(state), nominal: nominal(state)}));"""
    found = models.run(script, x.tolist())
    A, upper = PROBLEMS["cbf"]().constraint.both(x)
    steering = torch.tensor([entry["nominal"] for entry in found], dtype=torch.float64)
    ours = [torch.tensor([[row[key] for row in entry["rows"]] for entry in found], dtype=torch.float64) for key in "ab"]
    for mine, theirs in ((ours[0], A), (ours[1], upper), (steering, nominal_control(x))):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)

    grid = torch.linspace(-2, 2, 401, dtype=torch.float64)[:, None]
    script = """
        const {bound, side, target} = await import("./js/pieces.js");
        return arguments[0].map(([x]) => [side(x), side(x) * bound(x), target(x)]);"""
    rows, problem = PROBLEMS["pwc"]().constraint.numbers(grid, grid), PROBLEMS["pwc"]()
    expected = torch.cat([rows.A[..., 0], rows.upper, problem.target(grid)], -1)
    found = torch.tensor(models.run(script, grid.tolist()), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_path_shown_is_the_library_s(models, shipped):
    problem, x = PROBLEMS["cbf"](), torch.tensor([[-3.5, 0.5, -0.4, 0.0, 0.0]], dtype=torch.float64)
    ends: list[Rollout] = []
    policy = lambda state: shipped["cbf"](state.float(), torch.zeros(1, 2))[1].double()
    with torch.no_grad():
        problem.rollout(policy, x, problem.cost_and_residual, record=ends.append)
    shown = models.run("return (await playground.models()).cbf.shown().near.state")
    torch.testing.assert_close(torch.tensor([shown], dtype=torch.float64), ends[-1].state, rtol=1e-3, atol=1e-3)


def test_barriers_hold_under_any_push_and_are_broken_without_enforcement(models):
    script = """
        const view = (await playground.models()).cbf;
        const found = [];
        for (const [start, speed, turn] of arguments[0]) {
            document.getElementById("push-speed").value = speed;
            document.getElementById("push-turn").value = turn;
            await view.set(start);
            const {near, raw} = view.shown();
            found.push({holds: near.holds, free: raw.holds, checked: near.checked,
                        said: document.getElementById("cbf-verdict").textContent});
        }
        return found;"""
    starts = [[-3.5, 0.5, -0.4, 0, 0], [-3.9, 0.1, -0.7, 0, 0], [-3.7, 0.9, 0.2, 0, 0]]
    cases = [(start, *push) for start in starts for push in ((0, 60), (0, -60), (10, 150), (-5, 0))]
    found = models.run(script, cases)
    assert all(entry["holds"] and "hold at all" in entry["said"] and entry["checked"] >= 50 for entry in found)
    assert sum(not entry["free"] for entry in found) > len(found) // 2


def test_bounds_hold_under_any_push_and_the_start_can_be_dragged(models):
    script = """
        const view = (await playground.models()).pwc;
        document.getElementById("push-pwc").value = arguments[0];
        await view.refresh();
        return view.shown();"""
    for push in (-5, 0, 3):
        shown = models.run(script, push)
        assert shown["holds"]
        assert shown["push"] == push
        assert shown["free"]["violation"] > 1
    before = models.text("cbf-spoken")
    models.drag("start", 30, 40)
    models.press("heading", "\ue013", "\ue013")
    models.run("await (await playground.models()).cbf.refresh()")
    assert models.text("cbf-spoken") != before
