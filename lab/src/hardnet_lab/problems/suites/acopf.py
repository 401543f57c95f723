"""AC optimal power flow: the cheapest dispatch of a grid at given loads, ``hardnet suite acopf``.

    min sum c2 Pg^2 + c1 Pg + c0   s.t.  power balance of every bus, bounds on Pg, Qg and V, no limits on lines.

`PowerBalance` has the whole dispatch y = (Pg, Qg, V, angle) as outputs, with two equalities per bus. `PowerFlow` has
only the controls as outputs, that is, the power of all generators but one and all generator voltages. The power flow
gives the rest, so the balance holds by construction and the bounds of the dependent quantities are the nonlinear rows.
Both are measured on the whole dispatch. Loads are drawn from DC3's distribution with our own random stream, since
DC3's file is not public; on 300 buses that leaves no dispatch, so loads differ from the grid's own by up to a tenth.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from functools import partial
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardnet.errors import FileError, ShapeError, sentence
from hardnet.sets import Box, Nonlinear
from hardnet_lab.problems.base import Policy, both_outputs, moved, random_state
from hardnet_lab.problems.suites.base import SuiteProblem, fingerprint, reference

# An electric grid in steady state: injections of its buses, their Jacobian, and the power flow as completion.
#
# With voltages of magnitude V and angle a, admittances G + iB, ``a_ij = a_i - a_j``:
#
#     A_ij = V_i V_j (G_ij cos a_ij + B_ij sin a_ij),   C_ij = V_i V_j (G_ij sin a_ij - B_ij cos a_ij),
#     P_i = sum_j A_ij,   Q_i = sum_j C_ij,
#
# and a bus is in balance when P + load = generation, for active and reactive power. Everything is in units of the
# grid's base power. The data is in ``data/grid-CASE.json``, so that neither a solver nor a package of cases is needed.


CHORD_STEPS, NEWTON_STEPS = 25, 2
"""Power-flow steps with the factor of the nominal point, then with each sample's own factor."""


class Tables(NamedTuple):
    """The tables of a case with the columns of the MATPOWER format, and its cheapest dispatch at its own loads."""

    base: float
    bus: Tensor  # (buses, 13)
    gen: Tensor  # (generators, 10), in service, at most one at a bus
    branch: Tensor  # (branches, 11), in service
    gencost: Tensor  # (generators, 3): quadratic, linear and constant coefficient, in units of base power
    nominal: Tensor  # (2 generators + 2 buses,): Pg, Qg, V, angle


def read_grid(case: str) -> Tables:
    """The tables of a case that ships with this package."""
    file = resources.files("hardnet_lab.problems.suites") / "data" / f"grid-{case}.json"
    if not file.is_file():
        raise FileError(f"{case}: expected a grid of this package (case9, case57, case118, case300)")
    content = json.loads(file.read_text())
    numbers = (torch.tensor(content[name], dtype=torch.float64) for name in Tables._fields[1:])
    return Tables(content["base"], *numbers)


def admittance(tables: Tables) -> tuple[Tensor, Tensor]:
    """G and B, ``(buses, buses)``: a branch is a transformer and a series impedance between two half shunts."""
    count = len(tables.bus)
    Y = torch.zeros(count, count, dtype=torch.complex128)
    place = {int(number): index for index, number in enumerate(tables.bus[:, 0].tolist())}
    for start, end, r, x, shunt, ratio, shift in tables.branch[:, [0, 1, 2, 3, 4, 8, 9]].tolist():
        i, j, series = place[int(start)], place[int(end)], 1 / complex(r, x)
        turned = math.radians(shift)
        tap = (ratio or 1.0) * complex(math.cos(turned), math.sin(turned))
        own = series + 0.5j * shunt
        Y[i, i] += own / abs(tap) ** 2
        Y[j, j] += own
        Y[i, j] -= series / tap.conjugate()
        Y[j, i] -= series / tap
    Y += torch.diag(torch.complex(tables.bus[:, 4], tables.bus[:, 5]) / tables.base)
    return Y.real.contiguous(), Y.imag.contiguous()


class Grid(nn.Module):
    """Buses, generators and branches; outputs of a dispatch are ``(Pg, Qg, V, angle)``, inputs the loads ``(Pd, Qd)``.

    Args:
        case: ``"case9"``, ``"case57"``, ``"case118"`` or ``"case300"``.
    """

    G: Tensor
    B: Tensor
    at: Tensor
    load: Tensor
    cost: Tensor
    lower: Tensor
    upper: Tensor
    nominal: Tensor
    turning: Tensor
    loaded: Tensor
    free: Tensor
    slack: Tensor
    v_order: Tensor
    angle_order: Tensor
    equations: Tensor
    columns: Tensor
    free_rows: Tensor
    unknowns: Tensor
    chord: Tensor

    def __init__(self, case: str) -> None:
        super().__init__()
        tables = read_grid(case)
        place = {int(number): index for index, number in enumerate(tables.bus[:, 0].tolist())}
        at = torch.tensor([place[int(number)] for number in tables.gen[:, 0].tolist()])
        self.case, self.base, self.buses, self.generators = case, tables.base, len(tables.bus), len(at)
        for name, value in self._constants(tables, at).items():
            self.register_buffer(name, value, persistent=False)
        self._order()
        self.register_buffer("chord", self._nominal_inverse(), persistent=False)

    def _constants(self, tables: Tables, at: Tensor) -> dict[str, Tensor]:
        """The numbers of the network and the roles of buses and generators; `at` is the bus of each generator."""
        slack = int((tables.bus[:, 1] == 3).nonzero().item())
        buses, generated = torch.arange(self.buses), torch.zeros(self.buses, dtype=torch.bool)
        generated[at] = True
        G, B = admittance(tables)
        low = [tables.gen[:, 9] / tables.base, tables.gen[:, 4] / tables.base, tables.bus[:, 12]]
        high = [tables.gen[:, 8] / tables.base, tables.gen[:, 3] / tables.base, tables.bus[:, 11]]
        angle = torch.full((self.buses,), math.inf, dtype=torch.float64)
        angle[slack] = 0.0
        return {
            "G": G,
            "B": B,
            "at": at,
            "load": torch.cat([tables.bus[:, 2], tables.bus[:, 3]]) / tables.base,
            "cost": tables.gencost,
            "lower": torch.cat([*low, -angle]),
            "upper": torch.cat([*high, angle]),
            "nominal": tables.nominal,
            "turning": buses[buses != slack],  # buses whose angle is unknown
            "loaded": buses[~generated],  # buses whose voltage is unknown
            "free": (at != slack).nonzero().squeeze(-1),  # generators whose power is a control
            "slack": (at == slack).nonzero().squeeze(-1),
        }

    @property
    def size(self) -> int:
        """Length of a dispatch."""
        return 2 * self.generators + 2 * self.buses

    def split(self, y: Tensor) -> tuple[Tensor, ...]:
        """Pg, Qg, V and angle of a dispatch ``(*batch, size)``."""
        return y.split([self.generators, self.generators, self.buses, self.buses], -1)

    def injections(self, v: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        """P and Q, ``(*batch, buses)`` each: ``V conj(Y V)`` in real arithmetic."""
        e, f = v * angle.cos(), v * angle.sin()
        i, j = e @ self.G.T - f @ self.B.T, e @ self.B.T + f @ self.G.T
        return e * i + f * j, f * i - e * j

    def slopes(self, v: Tensor, angle: Tensor) -> Tensor:
        """``d (P, Q) / d (angle, V)``, ``(*batch, 2 buses, 2 buses)``."""
        e, f = v * angle.cos(), v * angle.sin()
        same = e.unsqueeze(-1) * e.unsqueeze(-2) + f.unsqueeze(-1) * f.unsqueeze(-2)
        cross = f.unsqueeze(-1) * e.unsqueeze(-2) - e.unsqueeze(-1) * f.unsqueeze(-2)
        A, C = self.G * same + self.B * cross, self.G * cross - self.B * same
        P, Q = A.sum(-1), C.sum(-1)
        by_v = v.unsqueeze(-2)
        top = torch.cat([C - Q.diag_embed(), A / by_v + (P / v).diag_embed()], -1)
        return torch.cat([top, torch.cat([P.diag_embed() - A, C / by_v + (Q / v).diag_embed()], -1)], -2)

    def balance(self, y: Tensor, x: Tensor) -> Tensor:
        """``(P, Q) + load - generation``, ``(*batch, 2 buses)``."""
        pg, qg, v, angle = self.split(y)
        return torch.cat(self.injections(v, angle), -1) + x - torch.cat([self.spread(pg), self.spread(qg)], -1)

    def balance_slopes(self, y: Tensor, x: Tensor) -> Tensor:
        """``d balance / d y``, ``(*batch, 2 buses, size)``."""
        _, _, v, angle = self.split(y)
        by_angle, by_v = self.slopes(v, angle).split(self.buses, -1)
        eye = torch.eye(self.generators, dtype=y.dtype, device=y.device)
        at_bus = self.spread(eye).T
        made = torch.block_diag(-at_bus, -at_bus).expand(*y.shape[:-1], -1, -1)
        return torch.cat([made, by_v, by_angle], -1)

    def spread(self, made: Tensor) -> Tensor:
        """Generator values placed at their buses, zero elsewhere: ``(*batch, generators) -> (*batch, buses)``."""
        return made.new_zeros(*made.shape[:-1], self.buses).index_copy(-1, self.at, made)

    def price(self, y: Tensor) -> Tensor:
        """``sum c2 Pg^2 + c1 Pg + c0`` in units of base power squared, ``(*batch,)``."""
        pg = y[..., : self.generators]
        return (self.cost[:, 0] * pg.square() + self.cost[:, 1] * pg + self.cost[:, 2]).sum(-1) / self.base**2

    # ---- the power flow: everything else, computed from the free powers and the voltages of the generators

    @property
    def controls(self) -> int:
        """Number of controls, which determine a dispatch: the power of all generators but the slack, all voltages."""
        return 2 * self.generators - 1

    def chosen(self, y: Tensor) -> Tensor:
        """The controls ``(*batch, controls)`` of a dispatch."""
        pg, _, v, _ = self.split(y)
        return torch.cat([pg[..., self.free], v[..., self.at]], -1)

    def state(self, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """V and angle ``(*batch, buses)`` from controls u and unknowns z = (angles, voltages of loaded buses)."""
        angles, voltages = z.split([self.buses - 1, len(self.loaded)], -1)
        v = torch.cat([u[..., len(self.free) :], voltages], -1)[..., self.v_order]
        return v, torch.cat([angles, torch.zeros_like(angles[..., :1])], -1)[..., self.angle_order]

    def mismatch(self, u: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """The balance equations that determine z, ``(*batch, unknowns)``."""
        P, Q = self.injections(*self.state(u, z))
        made = u.new_zeros(*u.shape[:-1], self.buses).index_copy(-1, self.at[self.free], u[..., : len(self.free)])
        active, reactive = P + x[..., : self.buses] - made, Q + x[..., self.buses :]
        return torch.cat([active[..., self.turning], reactive[..., self.loaded]], -1)

    def flow(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """V and angle in balance for controls u and loads x, with the implicit derivative of the equations.

        Takes a fixed number of steps, first with the factor of the nominal point, then with each sample's own. In the
        last step the factor is held constant, so that autograd sees ``dz = -J^-1 dF``.
        """
        with torch.no_grad():
            z = self.unknowns.expand(*u.shape[:-1], -1)
            for _ in range(CHORD_STEPS):
                z = z - self.mismatch(u, x, z) @ self.chord.T
            for _ in range(NEWTON_STEPS - 1):
                z = z - self._newton(self._own_slopes(u, z), self.mismatch(u, x, z))
            J = self._own_slopes(u, z)
        return self.state(u, z - self._newton(J, self.mismatch(u, x, z)))

    def complete(self, u: Tensor, x: Tensor) -> Tensor:
        """The whole dispatch ``(*batch, size)`` for controls u and loads x; dependent generation closes the balance."""
        v, angle = self.flow(u, x)
        P, Q = self.injections(v, angle)
        pg = (P + x[..., : self.buses])[..., self.at]
        pg = pg.index_copy(-1, self.free, u[..., : len(self.free)])
        return torch.cat([pg, (Q + x[..., self.buses :])[..., self.at], v, angle], -1)

    def follows(self, y: Tensor) -> Tensor:
        """The dependent quantities with bounds: the slack's power, Qg, and the voltages of loaded buses."""
        pg, qg, v, _ = self.split(y)
        return torch.cat([pg[..., self.slack], qg, v[..., self.loaded]], -1)

    def following_slopes(self, u: Tensor, x: Tensor) -> Tensor:
        """``d follows(complete(u, x)) / d u``, ``(*batch, rows, controls)``: one solve with `controls` right sides."""
        v, angle = self.flow(u, x)
        whole = self.slopes(v, angle)
        at_voltages = whole[..., self.buses + self.at]
        free = len(self.free)
        direct = whole.new_zeros(*whole.shape[:-1], self.controls)
        direct[..., free:] = at_voltages
        right = direct[..., self.equations, :].clone()
        right[..., self.free_rows, torch.arange(free, device=u.device)] = -1.0
        moved = -torch.linalg.solve(whole[..., self.equations, :][..., self.columns], right)
        own = torch.cat([self.at[self.slack], self.buses + self.at])
        generated = whole[..., own, :][..., self.columns] @ moved + direct[..., own, :]
        return torch.cat([generated, moved[..., self.buses - 1 :, :]], -2)

    def _newton(self, J: Tensor, mismatch: Tensor) -> Tensor:
        return torch.linalg.solve_ex(J, mismatch.unsqueeze(-1)).result.squeeze(-1)

    def _own_slopes(self, u: Tensor, z: Tensor) -> Tensor:
        return self.slopes(*self.state(u, z))[..., self.equations, :][..., self.columns]

    def _order(self) -> None:
        """Register the index tensors that order V, the angles and the equations, and the nominal unknowns."""
        bus = torch.cat([self.at, self.loaded])
        turning = torch.cat([self.turning, self.at[self.slack]])
        equations = torch.cat([self.turning, self.buses + self.loaded])
        rows = {int(number): index for index, number in enumerate(self.turning.tolist())}
        free_rows = torch.tensor([rows[number] for number in self.at[self.free].tolist()])
        _, _, v, angle = self.split(self.nominal)
        parts: dict[str, Any] = {"v_order": bus.argsort(), "angle_order": turning.argsort(), "equations": equations}
        parts |= {"columns": equations, "free_rows": free_rows}
        parts["unknowns"] = torch.cat([angle[self.turning], v[self.loaded]])
        for name, value in parts.items():
            self.register_buffer(name, value, persistent=False)

    def _nominal_inverse(self) -> Tensor:
        return torch.linalg.inv(self._own_slopes(self.chosen(self.nominal), self.unknowns))


SEED = 2021
SPREAD, CORRELATION, RANGE = 0.7 / 1.645, 0.5, (0.3, 1.7)
"""Distribution of the load factors: standard deviation, correlation between buses, and allowed range."""
LEAST_POWER_FACTOR = 0.8
NEAR = {"case300": 0.1}
"""Grids where the loads of DC3's distribution have no dispatch: active and reactive loads vary by this share alone."""
VALIDATION, TEST = 100, 100


def draw_loads(grid: Grid, count: int, seed: int = SEED) -> Tensor:
    """Loads ``(count, 2 buses)``: active from correlated factors, reactive from a power factor in [0.8, 1]."""
    return loads_of(grid, draw_factors(grid, count, seed))


def draw_factors(grid: Grid, count: int, seed: int = SEED) -> Tensor:
    """The factors of the active loads and the power factors, ``(count, 2, loads)``, drawn by numpy only.

    Samples with a factor outside the range are drawn again. In a grid of `NEAR` they are uniform factors of the active
    and the reactive load of each bus.
    """
    random, loads = random_state(seed), int((grid.load[: grid.buses] != 0).sum())
    if (near := NEAR.get(grid.case)) is not None:
        return torch.from_numpy(random.uniform(1 - near, 1 + near, (count, 2, grid.buses)))
    drawn = torch.empty(count, 2, loads, dtype=torch.float64)
    for row in drawn:
        row[0] = _factors(random, loads)
        row[1] = torch.from_numpy(random.uniform(LEAST_POWER_FACTOR, 1.0, loads))
    return drawn


def loads_of(grid: Grid, drawn: Tensor) -> Tensor:
    """The loads ``(count, 2 buses)`` of factors ``(count, 2, loads)``."""
    load = grid.load.cpu()
    if grid.case in NEAR:
        return load * drawn.flatten(1)
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
        """The loads that vary, as relative deviations from the grid's own loads in units of their spread."""
        own = self.grid.load[self.varied]
        return (x[..., self.varied] / own - 1) / NEAR.get(self.grid.case, SPREAD)

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
    """The whole dispatch as outputs, two equalities per bus: 24, 128, 344 and 738 outputs for the four grids."""

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
    """The controls as outputs, the rest by power flow: 5, 13, 107 and 137 outputs for the four grids."""

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
