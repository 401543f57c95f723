"""Levels of rows that give way: against a sequence of quadratic programs, names, gradients, files, refusals."""

import pytest
import torch

import hardnet as hn
from tests.draws import draw, draw_uniform, tensor

F64 = torch.float64


def sequence(raw, A, lower, upper, weight, level):
    """Slack ``(k,)`` and nearest point ``(n,)`` by one program of DAQP for each level, and one for the nearest point.

    ``lower <= A y + s <= upper`` with the slack of the levels above, which may be off by 1e-7.
    """
    daqp, np = pytest.importorskip("daqp"), pytest.importorskip("numpy")
    n, slack = len(raw), torch.zeros_like(lower)

    def solve(H, f, matrix, low, high):
        finite = [np.ascontiguousarray(side.nan_to_num(posinf=1e30, neginf=-1e30).numpy()) for side in (high, low)]
        sense = np.zeros(len(low), dtype=np.int32)
        x, _, flag, _ = daqp.solve(H.numpy(), f.numpy(), matrix.numpy(), *finite, sense, primal_tol=1e-9, eps_prox=1e-3)
        assert flag == 1
        return torch.tensor(x)

    for own in sorted({one for one in level.tolist() if one > 0}):
        soft, kept = level == own, level <= own
        columns = torch.diag(soft.double())[:, soft]
        H = torch.diag(torch.cat([torch.zeros(n, dtype=F64), 2 * weight[soft]]))
        room = torch.where(soft, 0.0, 1e-7)[kept]
        low, high = (lower - slack)[kept] - room, (upper - slack)[kept] + room
        x = solve(H, torch.zeros(len(H), dtype=F64), torch.cat([A, columns], -1)[kept], low, high)
        slack[soft] = x[n:]
    return slack, solve(torch.eye(n, dtype=F64), -raw, A, lower - slack - 1e-7, upper - slack + 1e-7)


def crowded(seed, n=4, m=3, levels=(1, 2, 3), reach=2.0):
    """A box of one and, for each level, m rows of which some are out of reach."""
    parts, numbers = [hn.Box(-torch.ones(n, dtype=F64), 1.0, name="limits")], []
    for place, level in enumerate(levels):
        A, lower = draw(m, n, seed=seed + 10 * place), reach * draw(m, seed=seed + 10 * place + 1)
        weight = 0.1 + draw_uniform(m, seed=seed + 10 * place + 2)
        rows = hn.Affine(A, lower=lower, name=f"rows{level}")
        parts.append(hn.Relaxed(rows, weight=weight, level=level))
        numbers.append((A, lower, torch.full_like(lower, torch.inf), weight, torch.full_like(lower, level)))
    constraint = parts[0]
    for part in parts[1:]:
        constraint = constraint & part
    one = torch.ones(n, dtype=F64)
    numbers.append((torch.eye(n, dtype=F64), -one, one, 0 * one, 0 * one))
    return constraint, [torch.cat(part) for part in zip(*numbers, strict=True)]


@pytest.mark.parametrize("levels", [(1, 2), (1, 2, 3), (2, 5), (1, 1, 2)])
@pytest.mark.parametrize("seed", range(6))
def test_slack_and_nearest_point_are_those_of_a_sequence_of_programs(seed, levels):
    constraint, numbers = crowded(seed, levels=levels)
    raw = 2 * draw(4, 4, seed=seed + 100)
    y = hn.layers.Projection(constraint)(raw)
    certificate = hn.check(constraint, y)
    assert certificate.ok
    assert certificate.exact_box.all()
    for i in range(4):
        slack, nearest = sequence(raw[i], *numbers)
        count = len(slack) - 4
        torch.testing.assert_close(certificate.slack[i, 4:], slack[:count].abs(), rtol=0, atol=2e-6)
        torch.testing.assert_close(y[i], nearest, rtol=0, atol=2e-4)


@pytest.mark.parametrize("seed", range(6))
def test_a_lower_level_moves_a_higher_one_by_rounding_alone(seed):
    """The slack of level 1 is what it is without level 2, and rows of level 1 hold with it at the answer with both."""
    both, _ = crowded(seed, levels=(1, 2))
    alone = both.parts[0] & both.parts[1]
    raw = 3 * draw(8, 4, seed=seed + 50)
    y = hn.layers.Projection(both)(raw)
    with_both, without = hn.check(both, y), hn.check(alone, y)
    assert without.ok
    torch.testing.assert_close(with_both.slack[:, 4:7], without.slack[:, 4:7], rtol=0, atol=1e-9)


def test_one_level_is_what_it_was_whatever_its_number():
    limits, rows = hn.Box(-torch.ones(4, dtype=F64), 1.0), hn.Affine(draw(5, 4, seed=1), lower=2 * draw(5, seed=2))
    raw = 2 * draw(6, 4, seed=3)
    first = hn.layers.Projection(limits & hn.Relaxed(rows, weight=2.0))(raw)
    assert torch.equal(first, hn.layers.Projection(limits & hn.Relaxed(rows, 2.0, level=7))(raw))


def test_a_level_without_contradiction_holds_and_the_next_gives_way():
    """``y1 + y2 >= 1`` first, ``y1 <= -0.5`` second, ``y2 <= -0.2`` third, in a box of one: (0, 1)."""
    first = hn.Relaxed(hn.Affine([[1.0, 1.0]], lower=1.0, name="first"))
    second = hn.Relaxed(hn.Affine([[1.0, 0.0]], upper=-0.5, name="second"), level=2)
    third = hn.Relaxed(hn.Affine([[0.0, 1.0]], upper=-0.2), level=3, name="third")
    constraint = hn.Box(-1.0, 1.0, name="limits") & third & first & second
    y = hn.HardNet(torch.nn.Identity(), constraint)(torch.zeros(1, 2, dtype=F64))
    torch.testing.assert_close(y, tensor([0.0, 1.0]), rtol=0, atol=1e-12)
    certificate = hn.check(constraint, y)
    gave = certificate.given_way
    assert {name: report.level for name, report in gave.items()} == {"third": 3, "second": 2}
    assert gave["second"].slack == pytest.approx(0.5, abs=1e-9)
    assert gave["third"].slack == pytest.approx(1.2, abs=1e-9)
    assert "second gave way by up to 0.5 (level 2); third gave way by up to 1.2 (level 3)" in str(certificate)
    worse = torch.tensor([[-0.1, 1.0]], dtype=F64)  # better for level 2, at the cost of level 1
    assert not hn.check(constraint, worse).ok


def test_nothing_gives_way_where_nothing_must():
    constraint, _ = crowded(3, reach=0.0)
    hard = constraint.parts[0]
    for part in constraint.parts[1:]:
        hard = hard & part.constraint
    raw = 2 * draw(8, 4, seed=4)
    assert torch.equal(hn.layers.Projection(constraint)(raw), hn.layers.Projection(hard)(raw))


@pytest.mark.parametrize("seed", range(4))
def test_gradients_reach_every_number_through_all_levels(seed):
    raw, first, second = 2 * draw(3, seed=seed), draw(2, 3, seed=seed + 1), draw(2, 3, seed=seed + 2)
    low, high = 2 + draw_uniform(2, seed=seed + 3), 2 + draw_uniform(2, seed=seed + 4)
    limit = torch.ones(3, dtype=F64)

    def project(raw, first, second, low, high, limit):
        top = hn.Relaxed(hn.Affine(lambda x: first, lower=lambda x: low), weight=[1.0, 2.0])
        bottom = hn.Relaxed(hn.Affine(lambda x: second, lower=lambda x: high), weight=[0.5, 1.0], level=2)
        return hn.layers.Projection(hn.Box(lambda x: -limit, lambda x: limit) & top & bottom)(raw, raw)

    inputs = [number.requires_grad_() for number in (raw, first, second, low, high, limit)]
    assert torch.autograd.gradcheck(project, inputs, atol=1e-5)


def test_mates_float32_scaling_and_files(tmp_path):
    constraint, _ = crowded(5)
    raw = 2 * draw(6, 4, seed=6)
    layer = hn.layers.Projection(constraint)
    together = layer(raw)
    assert torch.equal(together, torch.cat([layer(raw[i : i + 1]) for i in range(6)]))
    z = hn.scaled(constraint, 0.0, 1.0)
    torch.testing.assert_close(hn.layers.Projection(z)(raw), together, rtol=0, atol=1e-9)
    assert [part.priority for part in z.parts[1:]] == [None, 2, 3]
    model = hn.HardNet(torch.nn.Linear(3, 4).double(), constraint)
    hn.save(model, tmp_path / "model")
    again = hn.load(tmp_path / "model", net=torch.nn.Linear(3, 4).double())
    x = draw(4, 3, seed=7)
    assert torch.equal(again(x), model(x))
    assert "level=2" in repr(again)
    other = hn.HardNet(torch.nn.Linear(3, 4).double(), crowded(5, levels=(1, 3, 2))[0])
    with pytest.raises(hn.errors.HardNetError):
        hn.load(tmp_path / "model", net=other)
    single = crowded(5)[0].float()
    y = hn.layers.Projection(single)(raw.float())
    assert y.dtype == torch.float32
    assert hn.check(single, y).ok


def test_hard_rows_without_a_point_are_named():
    constraint = crowded(5)[0] & hn.Affine([[1.0, 0.0, 0.0, 0.0]], lower=5.0, name="far")
    with pytest.raises(hn.errors.InfeasibleError, match="may not give way") as caught:
        hn.layers.Projection(constraint)(draw(2, 4))
    assert set(caught.value.names[0]) == {"far", "limits[0]"}


@pytest.mark.parametrize("level", [0, -1, 1.5, True, "high"])
def test_other_levels_are_refused(level):
    with pytest.raises(hn.errors.OptionError, match="level: expected an integer, 1 for the highest"):
        hn.Relaxed(hn.Box(0.0, 1.0), level=level)
