"""Transport polytopes: names, shapes, sums that differ by their rounding, and the nearest point against Dykstra."""

import copy
import pickle

import pytest
import torch

import hardnet as hn
from hardnet.errors import InfeasibleError, ShapeError
from tests.draws import draw

D = torch.float64


def rows_of(x):
    return torch.softmax(x[..., :3], -1)


def columns_of(x):
    return torch.softmax(x[..., 3:], -1)


class Shares(torch.nn.Module):
    """Learned sums."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(7, 3).double()

    def forward(self, x):
        return torch.softmax(self.linear(x), -1)


SETS = {
    "constants": lambda: hn.Transport([1.0, 2.0, 1.0], [0.5, 1.0, 2.0, 0.5]),
    "functions": lambda: hn.Transport(rows_of, columns_of),
    "one function": lambda: hn.Transport(rows_of, [0.1, 0.2, 0.3, 0.4]),
    "a module": lambda: hn.Transport(Shares(), columns_of),
}


def data(samples=6):
    return draw(samples, 7), 0.7 * draw(samples, 12, seed=1)


def dykstra(raw, rows, columns, sweeps=4000):
    """The nearest point by alternating projections onto rows, columns and the orthant, with Dykstra's corrections."""
    Y = raw.unflatten(-1, (rows.shape[-1], columns.shape[-1]))
    steps = (
        lambda Y: Y + ((rows - Y.sum(-1)) / Y.shape[-1]).unsqueeze(-1),
        lambda Y: Y + ((columns - Y.sum(-2)) / Y.shape[-2]).unsqueeze(-2),
        lambda Y: Y.clamp_min(0),
    )
    kept = [torch.zeros_like(Y) for _ in steps]
    for _ in range(sweeps):
        for place, step in enumerate(steps):
            moved = step(Y + kept[place])
            kept[place], Y = Y + kept[place] - moved, moved
    return Y.flatten(-2)


@pytest.mark.parametrize("kind", SETS)
def test_the_contract_of_a_set(kind):
    x, raw = data()
    hn.testing.check_set(SETS[kind](), raw, x)


@pytest.mark.parametrize("kind", SETS)
def test_the_nearest_point_is_the_one_of_alternating_projections(kind):
    x, raw = data()
    constraint = SETS[kind]()
    y = hn.HardNet(torch.nn.Identity(), constraint).layer(raw, x)
    assert hn.check(constraint, y, x).ok
    with torch.no_grad():
        expected = dykstra(raw, *constraint.numbers(x, raw)[:2])
    assert (y - expected).abs().max() <= 1e-9  # Dykstra's own, after these sweeps


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("shape", [(2, 3), (4, 4), (5, 7), (8, 8)])
def test_totals_that_differ_by_their_rounding_are_no_contradiction(dtype, shape):
    generator = torch.Generator().manual_seed(3)
    softmax = lambda n: torch.softmax(torch.randn(20, n, generator=generator), -1).to(dtype)
    rows, columns = (softmax(size) / (1 if dtype is torch.float32 else 3) for size in shape)
    columns = columns * (rows.sum(-1) / columns.sum(-1)).unsqueeze(-1)
    raw = torch.randn(20, shape[0] * shape[1], generator=generator).to(dtype)
    for constraint in (hn.Transport(rows, columns), hn.Transport(rows, columns) & hn.Box(upper=2.0)):
        y = hn.layers.Projection(constraint)(raw)
        assert hn.check(constraint, y).ok
        Y = y.unflatten(-1, shape)
        for sums, totals in ((Y.sum(-1), rows), (Y.sum(-2), columns)):
            assert (sums - totals).abs().max() <= 32 * torch.finfo(dtype).eps


def test_a_sample_whose_totals_contradict_each_other_is_refused_alone():
    rows = torch.tensor([[0.5, 0.5], [0.5, 0.7]], dtype=D)
    plan = hn.Transport(lambda x: x, [0.5, 0.5], name="plan")
    raw = draw(2, 4)
    with pytest.raises(InfeasibleError, match=r"plan\.rows") as raised:
        hn.layers.Projection(plan)(raw, rows)
    assert raised.value.samples == [1]
    y = hn.layers.Projection(plan, on_infeasible="nan")(raw, rows)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()


REFUSED = [
    (lambda: hn.Transport([1.0, 1.0], [1.0, 2.0]), InfeasibleError, "rows, columns: expected the same sum.*2 and 3"),
    (lambda: hn.Transport([1.0, -1.0], [0.0]), hn.errors.BoundsError, "rows"),
    (lambda: hn.Transport(1.0, [1.0]), ShapeError, r"rows: expected shape \(r,\), got one number"),
    (lambda: hn.Transport([1.0], [[[1.0]]]).numbers(None, draw(3, 1)), ShapeError, "columns"),
    (lambda: hn.DoublyStochastic(0), ShapeError, "order: expected a positive integer"),
    (lambda: hn.DoublyStochastic(2).numbers(None, draw(2, 2)), ShapeError, "raw: .*4.*flatten"),
    (lambda: hn.Transport(rows_of, [1.0]).numbers(data()[0], draw(6, 4)), ShapeError, "3 rows and 1 columns"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSED)
def test_what_is_wrong_is_said_in_one_sentence(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_names_and_sizes():
    plan = hn.Transport([1.0, 1.0], [2.0], name="plan")
    like = torch.zeros(2, dtype=D)
    numbers = plan.numbers(None, like)
    rows = ["plan.rows[0]", "plan.rows[1]", "plan.columns[0]"]
    assert plan.row_names(numbers, like) == ["plan[0,0]", "plan[1,0]", *rows]
    assert plan.structure_names(numbers, like) == (rows, ["plan[0,0]", "plan[1,0]"])
    assert plan.equality_rows(numbers, like) == [2, 3]  # the last column follows from the others
    assert plan.dim == 2
    assert hn.DoublyStochastic(3).dim == 9
    assert hn.Transport(rows_of, [1.0]).dim is None


@pytest.mark.parametrize("kind", ["constants", "functions", "birkhoff"])
def test_copies_files_scaled_units_and_features(kind, tmp_path):
    constraint = hn.DoublyStochastic(3) if kind == "birkhoff" else SETS[kind]()
    n = constraint.dim or 12
    x = draw(5, 7)
    model = hn.HardNet(torch.nn.Linear(7, n).double(), constraint)
    y = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), y)
    path = tmp_path / "model.hardnet"
    hn.save(model, path, example=x)
    given = {} if kind != "functions" else {"constraint": constraint}
    assert torch.equal(hn.load(path, torch.nn.Linear(7, n).double(), **given)(x), y)
    mean, std = draw(n, seed=2), draw(n, seed=3).exp()
    rewritten = hn.scaled(constraint, mean, std)
    z = hn.layers.Projection(rewritten)(draw(5, n, seed=4), x)
    assert hn.check(constraint, mean + std * z, x, tolerance=1e-12).ok
    assert hn.features(constraint, x, at=torch.zeros(n, dtype=D)).shape[:-1] == (5,)
    assert hn.explain(constraint, x).method == "projection"


def test_the_gradient_reaches_the_sums():
    x, raw = data(4)
    layer = hn.layers.Projection(hn.Transport(rows_of, columns_of))
    torch.autograd.gradcheck(layer, (raw.requires_grad_(), x.requires_grad_()))
