"""AC optimal power flow: the cheapest dispatch of a grid at given loads, ``hardnet suite acopf``.

    min sum c2 Pg^2 + c1 Pg + c0   s.t.  power balance of every bus, bounds on Pg, Qg and V, no limits on lines.

`PowerBalance` has the whole dispatch y = (Pg, Qg, V, angle) as outputs, with two equalities per bus. `PowerFlow` has
only the controls as outputs, that is, the power of all generators but one and all generator voltages. The power flow
gives the rest, so the balance holds by construction and the bounds of the dependent quantities are the nonlinear rows.
Both are measured on the whole dispatch. Loads are drawn from DC3's distribution with our own random stream, since
DC3's file is not public.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.errors import ShapeError, sentence
from hardnet.sets import Box, Nonlinear
from hardnet_lab.problems.base import Policy, both_outputs, moved, random_state
from hardnet_lab.problems.suites.base import SuiteProblem, fingerprint, reference
from hardnet_lab.problems.suites.grid import Grid

SEED = 2021
SPREAD, CORRELATION, RANGE = 0.7 / 1.645, 0.5, (0.3, 1.7)
"""Distribution of the load factors: standard deviation, correlation between buses, and allowed range."""
LEAST_POWER_FACTOR = 0.8
VALIDATION, TEST = 100, 100


def draw_loads(grid: Grid, count: int, seed: int = SEED) -> Tensor:
    """Loads ``(count, 2 buses)``: active from correlated factors, reactive from a power factor in [0.8, 1]."""
    return loads_of(grid, draw_factors(grid, count, seed))


def draw_factors(grid: Grid, count: int, seed: int = SEED) -> Tensor:
    """The factors of the active loads and the power factors, ``(count, 2, loads)``, drawn by numpy only.

    Samples with a factor outside the range are drawn again.
    """
    random, loads = random_state(seed), int((grid.load[: grid.buses] != 0).sum())
    drawn = torch.empty(count, 2, loads, dtype=torch.float64)
    for row in drawn:
        row[0] = _factors(random, loads)
        row[1] = torch.from_numpy(random.uniform(LEAST_POWER_FACTOR, 1.0, loads))
    return drawn


def loads_of(grid: Grid, drawn: Tensor) -> Tensor:
    """The loads ``(count, 2 buses)`` of factors ``(count, 2, loads)``."""
    load = grid.load.cpu()
    buses = load[: grid.buses].nonzero().squeeze(-1)
    factor, power_factor = drawn.unbind(1)
    loads = torch.zeros(len(drawn), 2 * grid.buses, dtype=torch.float64)
    loads[:, buses] = active = factor * load[buses]
    sign = load[grid.buses + buses].sign()
    loads[:, grid.buses + buses] = sign * active.abs() * (1 / power_factor.square() - 1).sqrt()
    return loads


def _factors(random: Any, count: int) -> Tensor:
    """``N(1, SPREAD^2 (0.5 11' + 0.5 I))``, conditioned on all factors being in the range."""
    while True:
        own, common = random.normal(size=count), random.normal()
        drawn = 1 + SPREAD * (math.sqrt(1 - CORRELATION) * own + math.sqrt(CORRELATION) * common)
        if (drawn >= RANGE[0]).all() and (drawn <= RANGE[1]).all():
            return torch.from_numpy(drawn)


class Balance(nn.Module):
    """The balance of every bus, or its derivative, as a function of dispatch and loads."""

    def __init__(self, grid: Grid, *, slopes: bool = False) -> None:
        super().__init__()
        self.grid, self.slopes = grid, slopes

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """``(*batch, 2 buses)``, or ``(*batch, 2 buses, n)``."""
        return self.grid.balance_slopes(y, x) if self.slopes else self.grid.balance(y, x)


class Following(nn.Module):
    """The dependent quantities with bounds, or their derivative, as a function of controls and loads.

    Controls outside their bounds are clamped first: the layer's iterates keep the bounds, but the layer also evaluates
    the rows at raw, and far outside the bounds the power flow has no solution.
    """

    def __init__(self, grid: Grid, *, slopes: bool = False) -> None:
        super().__init__()
        self.grid, self.slopes = grid, slopes

    def forward(self, u: Tensor, x: Tensor) -> Tensor:
        """``(*batch, rows)``, or ``(*batch, rows, controls)``."""
        grid = self.grid
        u = torch.minimum(torch.maximum(u, grid.chosen(grid.lower)), grid.chosen(grid.upper))
        return grid.following_slopes(u, x) if self.slopes else grid.follows(grid.complete(u, x))


class NominalNetwork(nn.Module):
    """``nominal + spread * (W x + net(x))``: outputs around the dispatch at the grid's own loads.

    Args:
        inputs: Length of the encoded loads.
        outputs: Length of y.
        nominal: ``(outputs,)``.
        spread: ``(outputs,)``: the unit of each output.
        width: Width of the two hidden layers.
    """

    nominal: Tensor
    spread: Tensor

    def __init__(self, inputs: int, outputs: int, nominal: Tensor, spread: Tensor, width: int = 256) -> None:
        super().__init__()
        sizes = (inputs, width, width)
        blocks = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.SiLU())]
        last, self.linear = nn.Linear(width, outputs), nn.Linear(inputs, outputs)
        with torch.no_grad():  # start near the nominal dispatch
            last.weight.mul_(0.1)
            self.linear.weight.mul_(0.1)
        self.body = nn.Sequential(*blocks, last)
        self.register_buffer("nominal", nominal.cpu())
        self.register_buffer("spread", spread.cpu())

    def forward(self, x: Tensor) -> Tensor:
        """Map encoded loads ``(*batch, inputs)`` to raw outputs ``(*batch, outputs)``."""
        return self.nominal + self.spread * (self.linear(x) + self.body(x))


class Dispatch(SuiteProblem):
    """Base of both formulations: the grid, loads that have a feasible dispatch, the price, and the rows.

    Args:
        name: The name of the case.
        case: The name of the grid.
        samples: Loads to draw; those without a feasible dispatch (recorded with the optima) are left out.
    """

    batch_size = 200
    soft_weight = 100.0
    capturable = False

    def __init__(self, name: str, case: str, samples: int) -> None:
        self.name, self.grid = name, Grid(case)
        drawn = draw_factors(self.grid, samples)
        known = reference(f"loads-{case}") or {"without": []}
        kept = torch.ones(samples, dtype=torch.bool)
        kept[[index for index in known["without"] if index < samples]] = False
        train = int(kept.sum()) - VALIDATION - TEST
        if train < 1:
            raise ShapeError(
                sentence("samples", f"more than {VALIDATION + TEST} loads with a dispatch", int(kept.sum()))
            )
        test, validation, rest = loads_of(self.grid, drawn[kept]).split([TEST, VALIDATION, train])
        # The checksum is of the draws, not the loads: the last bit of torch's square roots depends on the processor.
        self.take_data(rest, validation, test, fingerprint(drawn[kept][:TEST]))
        self.varied: Tensor = self.grid.load.nonzero().squeeze(-1)
        self.encoded_dim = len(self.varied)

    def encode(self, x: Tensor) -> Tensor:
        """The loads that vary, as relative deviations from the grid's own loads in units of SPREAD."""
        own = self.grid.load[self.varied]
        return (x[..., self.varied] / own - 1) / SPREAD

    @abstractmethod
    def dispatch(self, y: Tensor, x: Tensor) -> Tensor:
        """The whole dispatch of an output y."""

    def value(self, y: Tensor, x: Tensor) -> Tensor:
        """The price of the dispatch, divided by the square of the base power as in DC3."""
        return self.grid.price(self.dispatch(y, x))

    def residuals(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """``|balance|`` of the buses, then the bound violations of Pg, Qg, V and the slack's angle."""
        return self.rows_of(self.dispatch(y, x), x)

    def rows_of(self, dispatch: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of a whole dispatch."""
        outside = (self.grid.lower - dispatch).clamp_min(0) + (dispatch - self.grid.upper).clamp_min(0)
        return self.grid.balance(dispatch, x).abs(), outside

    def loss(self, policy: Policy, x: Tensor, soft_weight: float = 0.0, displacement: float = 0.0) -> Tensor:
        """``price + soft_weight * sum residual^2 + displacement * |y - raw|^2``, with a single power flow."""
        given = self.inputs(x)
        y, raw = both_outputs(policy(given))
        whole = self.dispatch(y, given)
        loss = self.grid.price(whole)
        if soft_weight:
            loss = loss + soft_weight * sum(part.square().sum(-1) for part in self.rows_of(whole, given))
        return loss + displacement * moved(y, raw) if displacement else loss


class PowerBalance(Dispatch):
    """The whole dispatch as outputs, two equalities per bus: 24, 128 and 344 outputs for the three grids."""

    def __init__(self, case: str, samples: int = 1200) -> None:
        super().__init__(f"acopf-{case}-balance", case, samples)
        grid = self.grid
        self.output_dim = grid.size
        rows = Nonlinear(
            Balance(grid), dim=grid.size, lower=0.0, upper=0.0, jacobian=Balance(grid, slopes=True), name="balance"
        )
        self.constraint = rows & Box(grid.lower, grid.upper)
        self.network = partial(NominalNetwork, nominal=grid.nominal, spread=torch.full_like(grid.nominal, 0.05))

    def dispatch(self, y: Tensor, x: Tensor) -> Tensor:
        """The outputs themselves."""
        return y


class PowerFlow(Dispatch):
    """The controls as outputs, the rest by power flow: 5, 13 and 107 outputs for the three grids."""

    def __init__(self, case: str, samples: int = 1200) -> None:
        super().__init__(f"acopf-{case}", case, samples)
        grid = self.grid
        self.output_dim = grid.controls
        lower, upper = grid.follows(grid.lower), grid.follows(grid.upper)
        rows = Nonlinear(
            Following(grid),
            dim=grid.controls,
            lower=lower,
            upper=upper,
            jacobian=Following(grid, slopes=True),
            name="bounds of what follows",
        )
        low, high = grid.chosen(grid.lower), grid.chosen(grid.upper)
        self.constraint = rows & Box(low, high)
        self.network = partial(NominalNetwork, nominal=grid.chosen(grid.nominal), spread=(high - low) / 4)

    def dispatch(self, y: Tensor, x: Tensor) -> Tensor:
        """The power flow of the controls."""
        return self.grid.complete(y, x)
