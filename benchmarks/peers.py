"""Other tools that project onto a polyhedron, each with the same two calls; none is needed to use hardnet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.problems import NUMBERS, Case


class Run(NamedTuple):
    """A tool prepared for one case: `forward` returns y; `both` also returns the gradients of ``sum(y)`` by name."""

    forward: Callable[[], Tensor]
    both: Callable[[], tuple[Tensor, dict[str, Tensor]]] | None = None


class Peer(NamedTuple):
    """A tool: the packages it needs, how to prepare it, and the most samples it is timed on (None: all)."""

    packages: tuple[str, ...]
    build: Callable[[Case], Run]
    most: int | None = None

    @property
    def installed(self) -> bool:
        """Whether every package can be imported."""
        return all(find_spec(package) is not None for package in self.packages)


def through_torch(case: Case, project: Callable[..., Tensor]) -> Run:
    """A run of a differentiable torch function of raw, A, lower, upper."""
    leaves = case.leaves()

    def both() -> tuple[Tensor, dict[str, Tensor]]:
        y = project(*leaves)
        grads = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
        return y.detach(), {name: grad for name, grad in zip(NUMBERS, grads, strict=True) if grad is not None}

    fixed = [leaf.detach() for leaf in leaves]
    return Run(lambda: project(*fixed), both)


def _one_sided(case: Case, A: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equality rows and their right-hand sides, then inequality rows ``G y <= h``."""
    k = case.equalities
    A = A.expand(len(case.raw), *A.shape[-2:])
    G, h = torch.cat([A[:, k:], -A[:, k:]], 1), torch.cat([upper[:, k:], -lower[:, k:]], 1)
    return A[:, :k], upper[:, :k], G, h


def qpth(case: Case) -> Run:
    """Batched interior point (OptNet)."""
    from qpth.qp import QPFunction

    solve, eye = QPFunction(verbose=-1), torch.eye(case.raw.shape[-1]).to(case.raw)

    def project(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        E, e, G, h = _one_sided(case, A, lower, upper)
        none = raw.new_zeros(0)
        return solve(eye, -raw, G, h, *((E, e) if case.equalities else (none, none)))

    return through_torch(case, project)


def proxsuite(case: Case) -> Run:
    """The QPLayer of ProxQP."""
    from proxsuite.torch.qplayer import QPFunction

    solve, n = QPFunction(structural_feasibility=True), case.raw.shape[-1]
    eye = torch.eye(n).to(case.raw)

    def project(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        k, A = case.equalities, A.expand(len(raw), *A.shape[-2:])
        return solve(eye, -raw, A[:, :k], upper[:, :k], A[:, k:], lower[:, k:], upper[:, k:])[0]

    return through_torch(case, project)


def cvxpylayers(solver: str, **options: Any) -> Callable[[Case], Run]:
    """A cvxpylayer with raw, A and the bounds as parameters."""

    def build(case: Case) -> Run:
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

        (m, n), k = case.A.shape[-2:], case.equalities
        y, raw, A = cp.Variable(n), cp.Parameter(n), cp.Parameter((m, n))
        rows: list[Any] = []
        lower, upper = cp.Parameter(m), cp.Parameter(m)
        rows += [A[:k] @ y == upper[:k]] if k else []
        rows += [A[k:] @ y <= upper[k:], A[k:] @ y >= lower[k:]] if m > k else []
        problem = cp.Problem(cp.Minimize(cp.sum_squares(y - raw)), [*rows])
        layer = CvxpyLayer(problem, parameters=[raw, A, lower, upper], variables=[y])
        arguments = {"solve_method": solver, **options}

        def project(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
            A = A.expand(len(raw), *A.shape[-2:])
            return layer(raw, A, lower, upper, solver_args=arguments)[0]

        return through_torch(case, project)

    return build


def loop(solve: Callable[[Any, Any, Any, Any, int], Any]) -> Callable[[Case], Run]:
    """A loop over a compiled solver for single samples, forward only."""

    def build(case: Case) -> Run:
        arrays = [part.numpy() for part in (case.raw, case.rows(), case.lower, case.upper)]

        def forward() -> Tensor:
            raw, A, lower, upper = arrays
            samples = zip(raw, A, lower, upper, strict=True)
            found = [solve(*sample, case.equalities) for sample in samples]
            return torch.tensor(_stacked(found), dtype=case.raw.dtype)

        return Run(forward)

    return build


def _stacked(vectors: Iterable[Any]) -> Any:
    import numpy as np

    return np.array(list(vectors))


def daqp_one(raw: Any, A: Any, lower: Any, upper: Any, equalities: int) -> Any:
    """One sample by DAQP."""
    import daqp
    import numpy as np

    sense = np.zeros(len(upper), dtype=np.int32)
    sense[:equalities] = 5
    return daqp.solve(np.eye(len(raw)), -raw, A, upper, lower, sense)[0]


def osqp_one(raw: Any, A: Any, lower: Any, upper: Any, equalities: int) -> Any:
    """One sample by OSQP at 1e-8 with polishing."""
    import osqp
    from scipy import sparse

    solver = osqp.OSQP()
    eye = sparse.identity(len(raw), format="csc")
    options = {"eps_abs": 1e-8, "eps_rel": 1e-8, "max_iter": 20000, "polishing": True, "verbose": False}
    solver.setup(eye, -raw, sparse.csc_matrix(A), lower, upper, **options)
    return solver.solve().x


def piqp_one(raw: Any, A: Any, lower: Any, upper: Any, equalities: int) -> Any:
    """One sample by PIQP."""
    import numpy as np
    import piqp

    solver, k = piqp.DenseSolver(), equalities
    solver.setup(np.eye(len(raw)), -raw, A[:k], upper[:k], A[k:], lower[k:], upper[k:])
    solver.solve()
    return solver.result.x


def daqp_with_derivative(case: Case) -> Run:
    """The baseline of the table: a loop over DAQP, and the derivative on the active set by one batched Cholesky."""
    forward = loop(daqp_one)(case).forward

    def both() -> tuple[Tensor, dict[str, Tensor]]:
        y, A = forward(), case.rows()
        product = (A @ y.unsqueeze(-1)).squeeze(-1)
        high, low = product >= case.upper - 1e-9, product <= case.lower + 1e-9
        rows = A * (high | low).unsqueeze(-1)
        gram = rows @ rows.mT + torch.diag_embed((~(high | low)).to(y))
        factor = torch.linalg.cholesky(gram)
        dual, w = torch.cholesky_solve(rows @ torch.stack([case.raw - y, torch.ones_like(y)], -1), factor).unbind(-1)
        u = 1 - (rows.mT @ w.unsqueeze(-1)).squeeze(-1)
        matrix = -dual.unsqueeze(-1) * u.unsqueeze(-2) - w.unsqueeze(-1) * y.unsqueeze(-2)
        matrix = matrix if case.A.dim() == 3 else matrix.sum(0)
        share = 1 - 0.5 * (high & low).to(y)
        return y, {"raw": u, "A": matrix, "lower": w * low * share, "upper": w * high * share}

    return Run(forward, both)


def torch_peers() -> dict[str, Peer]:
    """The tools that need no JAX, by name."""
    tight = {"eps": 1e-8, "max_iters": 100000}
    return {
        "qpth": Peer(("qpth",), qpth, 100),
        "proxsuite": Peer(("proxsuite",), proxsuite, 256),
        "cvxpylayers SCS": Peer(("cvxpylayers",), cvxpylayers("SCS"), 4),
        "cvxpylayers SCS 1e-8": Peer(("cvxpylayers",), cvxpylayers("SCS", **tight), 2),
        "cvxpylayers Clarabel": Peer(("cvxpylayers", "clarabel"), cvxpylayers("Clarabel"), 4),
        "DAQP loop": Peer(("daqp", "numpy"), loop(daqp_one)),
        "DAQP loop + derivative": Peer(("daqp", "numpy"), daqp_with_derivative),
        "OSQP loop": Peer(("osqp", "scipy"), loop(osqp_one), 50),
        "PIQP loop": Peer(("piqp", "numpy"), loop(piqp_one), 256),
    }
