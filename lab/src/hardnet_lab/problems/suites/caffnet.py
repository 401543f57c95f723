"""The three tasks of CAffNet (ICML 2026), whose rows are more than their outputs: ``hardnet suite caffnet``.

`PointwiseBounds` fits a curve between two lower and two upper bounds on one output. `SmallPrograms` are five programs
of five variables, five inequalities and three equalities. `PolygonUnicycle` drives a unicycle past three polygons: 13
rows on two controls. The recipes are those of the published configuration, the draws those of its seeds where numpy
makes them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hardnet.sets import Affine, Box
from hardnet_lab.problems.base import Hidden, Policy, both_outputs, moved, random_state
from hardnet_lab.problems.piecewise import BOX_TARGET, Piece, Pieces
from hardnet_lab.problems.suites.base import SuiteProblem, fingerprint, violation_metrics
from hardnet_lab.problems.suites.programs import SuitePrograms

HIDDEN = Hidden((200, 200, 200))
"""Their backbone: three layers of 200."""


def _wave(x: Tensor) -> Tensor:
    return torch.sin(math.pi / 2 * (x + 1))


def _rows(*rows: Piece | float) -> Piece:
    def both(x: Tensor) -> Tensor:
        return torch.cat([row(x) if callable(row) else torch.full_like(x, row) for row in rows], -1)

    return both


LOWER = Pieces(
    _rows(lambda x: 5 * _wave(x) ** 2 - 3, lambda x: 5 * _wave(x) ** 8 - 2),
    _rows(-2.0, -3.0),
    _rows(
        lambda x: (4 - 9 * (x - 2 / 3) ** 2) * x - 2.5,
        lambda x: (5 - 4 * (x - 1 / 6) ** 2) * x - 2.5,
    ),
    _rows(lambda x: 3 / x**3 - 2.5, lambda x: 1.5 / x**3 - 1.5 - 5 / 18),
)
UPPER = Pieces(
    _rows(lambda x: -3 * _wave(x) + 0.2, lambda x: -3 * _wave(x) ** 3 + 1),
    _rows(-2.0, 2.0),
    _rows(lambda x: 3 - 4 * (x - 0.5) ** 2, lambda x: 3 - 4 * (x - 0.8) ** 2),
    _rows(2.0, 2.5),
)  # the first row of the second piece leaves one point: lower = upper = -2


class PointwiseBounds(SuiteProblem):
    """``min |y(x) - target(x)|^2`` over 50 points of [-2, 2]; two rows of ones on the single output, each two-sided."""

    name = "caffnet-pwc"
    output_dim = 1
    batch_size = 500
    soft_weight = 100.0
    hidden = HIDDEN

    def __init__(self) -> None:
        points = torch.from_numpy(random_state(1).uniform(-2, 2, (50, 1)))
        grid = torch.linspace(-2, 2, 400, dtype=torch.float64).unsqueeze(-1)
        self.take_data(points, points, grid, fingerprint(points))
        self.constraint = Affine(torch.ones(2, 1, dtype=torch.float64), lower=LOWER, upper=UPPER)

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """The squared error."""
        return (y - BOX_TARGET(x)).square().sum(-1)


class SmallPrograms(SuitePrograms):
    """``min 1/2 y'Qy + p'sin y  s.t.  A y <= b, C y = x``: the program of one published seed, bit for bit."""

    dc3_order = False
    soft_weight = 100.0
    hidden = HIDDEN

    def __init__(self, seed: int) -> None:
        super().__init__(f"caffnet-opt{seed}", 5, 3, 5, convex=False, samples=2010, parts=(1000, 10), seed=seed)


POLYGONS = (
    (
        (-1.2, 0.0),
        ((-0.36282, -0.08718), (-0.06282, -0.38718), (0.08718, 0.36282), (-0.51282, 0.21282), (0.53718, -0.08718)),
    ),
    (
        (-1.5, -2.0),
        (
            (-0.3, 0.12),
            (0.21969, 0.33123),
            (-0.23031, 0.39123),
            (-0.15, -0.3),
            (-0.08031, 0.45123),
            (0.51969, -0.50877),
        ),
    ),
    ((-2.8, 0.5), ((0.0, -0.6), (0.1671, -0.6), (-0.28329, -0.1), (0.31671, 0.0), (0.01671, 0.6))),
)
"""The center of each obstacle, and points around it whose convex hull it is."""
KAPPA, ALPHA = 10.0, 1.0
"""Sharpness of the smooth maximum over a polygon's sides; rate at which a barrier may fall."""
STATE = (-5.0, -4.0, -3.14), (1.0, 2.0, 3.14)
CONTROL = (-0.01, -0.5), (1.0, 0.5)
START = (-4.5, 0.0, 0.5)
TIME_STEP, TRAIN_STEPS, TEST_STEPS = 0.1, 150, 100
ARRIVED = 0.1
"""Distance to the goal at which the robot stands still."""
STATE_COST, LAST_COST = (1e3, 1e3, 1.0), (1e6, 1e6, 1.0)


def sides(center: tuple[float, float], points: tuple[tuple[float, float], ...]) -> Tensor:
    """Unit normals and offsets ``(sides, 3)`` of a convex hull: the pairs of points with all others to their left."""
    found = []
    for i, (ax, ay) in enumerate(points):
        for j, (bx, by) in enumerate(points):
            across = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in points]
            if i != j and min(across) >= 0:
                nx, ny = (by - ay) / math.hypot(bx - ax, by - ay), (ax - bx) / math.hypot(bx - ax, by - ay)
                found.append((nx, ny, nx * (center[0] + ax) + ny * (center[1] + ay)))
    return torch.tensor(found, dtype=torch.float64)


class PolygonRows(nn.Module):
    """``-h_k <= ∇h_k·g u`` of three polygons, and the state's box, as rows on (speed, turning rate) at x.

    ``h = (log mean exp κ(a_i p - b_i)) / κ`` over the sides of a polygon, positive outside it; with the pose's box
    these are 9 one-sided rows, and 13 with the controls' own bounds.
    """

    limits: Tensor

    def __init__(self) -> None:
        super().__init__()
        for index, polygon in enumerate(POLYGONS):
            self.register_buffer(f"sides{index}", sides(*polygon))
        self.register_buffer("limits", torch.tensor(STATE, dtype=torch.float64))

    def heights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """h ``(*batch, 3)`` and its derivative along the heading, likewise."""
        ahead = torch.stack([x[..., 2].cos(), x[..., 2].sin()], -1)
        found = []
        for index in range(len(POLYGONS)):
            polygon: Tensor = getattr(self, f"sides{index}").to(x)
            scaled = KAPPA * (x[..., :2] @ polygon[:, :2].mT - polygon[:, 2])
            height = (scaled.logsumexp(-1) - math.log(len(polygon))) / KAPPA
            found.append((height, (scaled.softmax(-1) * (ahead @ polygon[:, :2].mT)).sum(-1)))
        heights, slopes = zip(*found, strict=True)
        return torch.stack(heights, -1), torch.stack(slopes, -1)

    def matrix(self, x: Tensor) -> Tensor:
        """``(*batch, 6, 2)``: the polygons, then position and heading."""
        cosine, sine, zero = x[..., 2].cos(), x[..., 2].sin(), torch.zeros_like(x[..., 2])
        slopes = [*self.heights(x)[1].unbind(-1), cosine, sine, zero]
        return torch.stack([torch.stack(slopes, -1), torch.stack([zero] * 5 + [zero + 1], -1)], -1)

    def lower(self, x: Tensor) -> Tensor:
        """``(-α h, α (least - x))``."""
        return ALPHA * torch.cat([-self.heights(x)[0], self.limits[0].to(x) - x[..., :3]], -1)

    def upper(self, x: Tensor) -> Tensor:
        """None for the polygons, ``α (largest - x)`` for the state."""
        room = ALPHA * (self.limits[1].to(x) - x[..., :3])
        return torch.cat([torch.full_like(room, math.inf), room], -1)


class NearNominal(nn.Module):
    """``nominal + net(pose)`` from an input (pose, nominal control)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        widths = (3, *HIDDEN.sizes)
        blocks = [part for i in range(3) for part in (nn.Linear(widths[i], widths[i + 1]), nn.ReLU())]
        last = nn.Linear(widths[-1], outputs)
        with torch.no_grad():  # start near the nominal control
            last.weight.mul_(0.1)
        self.body = nn.Sequential(*blocks, last)

    def forward(self, x: Tensor) -> Tensor:
        """Raw controls ``(*batch, 2)``."""
        return x[..., 3:] + self.body(x[..., :3])


class PolygonUnicycle(SuiteProblem):
    """Drive (p_x, p_y, heading) to the origin in steps of 0.1 s by speed and turning rate, past three polygons.

    A row of data is a pose and room for the nominal control of a PID controller, which the rollout fills in. The cost
    and the violations are those of one rollout of 10 s from the published start.
    """

    name = "caffnet-cbf"
    output_dim = 2
    batch_size = 300
    soft_weight = 100.0
    capturable = False
    network = NearNominal

    def __init__(self) -> None:
        self.rows = rows = PolygonRows()
        low, high = torch.tensor(CONTROL, dtype=torch.float64)
        self.constraint = Affine(rows.matrix, lower=rows.lower, upper=rows.upper, name="barriers") & Box(low, high)
        random, poses = random_state(1), torch.empty(0, 3, dtype=torch.float64)
        while len(poses) < 300:
            drawn = torch.from_numpy(random.uniform(*STATE, (600, 3)))
            drawn[:, 2] = torch.atan2(-drawn[:, 1], -drawn[:, 0])
            poses = torch.cat([poses, drawn[(rows.heights(drawn)[0] >= 0).all(-1)]])
        room = lambda pose: torch.cat([pose, torch.zeros_like(pose[:, :2])], -1)
        start = torch.tensor([START], dtype=torch.float64)
        self.take_data(room(poses[:300]), room(start), room(start), fingerprint(poses[:300]))

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """What a single control costs: ``|u - nominal|^2``."""
        return (y - x[..., 3:]).square().sum(-1)

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """The cost of 15 s, with penalties for violations and for how far the layer moved."""
        cost, violations, moves = self.rollout(policy, self.inputs(x), TRAIN_STEPS)
        total = cost + soft_weight * violations.square().sum((-2, -1)) if soft_weight else cost
        return total + displacement * moves if displacement else total

    def evaluate(self, policy: Policy, x: Tensor) -> dict[str, Tensor]:
        """Cost and violations of 10 s; the steps are the samples over which these are averaged, as published."""
        cost, violations, _ = self.rollout(policy, self.inputs(x), TEST_STEPS)
        violations = violations.flatten(-3, -2)
        penalty = self.soft_weight * violations.square().sum((-2, -1))
        return {"objective": cost.mean(-1) + penalty} | violation_metrics(violations[..., :0], violations)

    def rollout(self, policy: Policy, x: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Cost ``(*batch,)``, violations of the 13 rows ``(*batch, steps, 13)``, and how far the layer moved."""
        pose, low, high = x[..., :3], *x.new_tensor(CONTROL)
        weight, last = x.new_tensor(STATE_COST), x.new_tensor(LAST_COST)
        total, before, cost = torch.zeros_like(pose), torch.zeros_like(pose), torch.zeros_like(x[..., 0])
        found, moves = [], torch.zeros_like(cost)
        for _ in range(steps):
            turned = torch.remainder(pose[..., 2:] + math.pi, 2 * math.pi) - math.pi
            pose = torch.cat([pose[..., :2], turned], -1)
            seen = _from_robot(pose)
            total = total + TIME_STEP * seen.detach()
            nominal = _nominal(seen, total, (seen - before) / TIME_STEP).clamp(low, high)
            before = seen.detach()
            y, raw = both_outputs(policy(torch.cat([pose, nominal], -1)))
            away = (pose[..., :2].norm(dim=-1, keepdim=True) > ARRIVED).to(x.dtype)
            control, pose = away * y.clamp(low, high), away * pose
            at = torch.cat([pose, nominal], -1)
            found.append(self.violations(control, at))
            cost = cost + (weight * pose.square()).sum(-1) + self.value(control, at)
            moves = moves + moved(y, raw)
            pose = _advance(pose, control)
        return cost + (last * pose.square()).sum(-1), torch.stack(found, -2), moves

    def violations(self, control: Tensor, x: Tensor) -> Tensor:
        """``relu`` of the 13 rows."""
        value = (self.rows.matrix(x) @ control.unsqueeze(-1)).squeeze(-1)
        low, high = control.new_tensor(CONTROL)
        over = (value - self.rows.upper(x))[..., 3:]
        return torch.cat([self.rows.lower(x) - value, over, low - control, control - high], -1).clamp_min(0)


def _from_robot(pose: Tensor) -> Tensor:
    """The goal in the robot's frame: ahead, aside, turn."""
    px, py, heading = pose.unbind(-1)
    cosine, sine = heading.cos(), heading.sin()
    return torch.stack([-cosine * px - sine * py, sine * px - cosine * py, -heading], -1)


def _nominal(seen: Tensor, total: Tensor, rate: Tensor) -> Tensor:
    """Speed from what is ahead, turning rate from what is aside."""
    speed = 0.01 * seen[..., 0] + 0.05 * total[..., 0]
    return torch.stack([speed, 0.2 * seen[..., 1] + 0.005 * total[..., 1] + 0.01 * rate[..., 1]], -1)


def _advance(pose: Tensor, control: Tensor) -> Tensor:
    """A Runge-Kutta step of order 4, which for this system is Simpson's rule over the heading."""
    speed, turn = (TIME_STEP * control).unbind(-1)
    heading = pose[..., 2]
    at = [heading, heading + turn / 2, heading + turn]
    ahead, aside = ((f(at[0]) + 4 * f(at[1]) + f(at[2])) / 6 for f in (torch.cos, torch.sin))
    return pose + torch.stack([speed * ahead, speed * aside, turn], -1)
