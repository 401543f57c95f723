"""The comparisons: the tasks, the tools for each task, and the process in which each tool runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from benchmarks.peers import Peer, Run, through_torch, torch_peers
from benchmarks.peers_jax import jax_peers
from benchmarks.problems import Case, Size
from benchmarks.routines import ALTERNATIVES, ON_GPU

OURS, KEPT, PLAIN, PRODUCTS = "hardnet", "hardnet, factor kept", "hardnet, torch alone", "two products"
THIS, LAST, BARE, OTHERS = "this revision", "last revision", "without numba", "others"
"""The processes: this source tree, an archive of a revision, this tree without numba, and everything else."""


class Tool(NamedTuple):
    """A way to do a task: its process, whether it accepts only a shared A, and whether it enforces."""

    peer: Peer
    process: str = THIS
    shared_only: bool = False
    enforces: bool = True

    def serves(self, size: Size) -> bool:
        """Whether it is installed and accepts this kind of problem."""
        return self.peer.installed and (size.shared or not self.shared_only)


class Task(NamedTuple):
    """A task: its tools by name, the name of the reference tool, and the sizes on a CPU and on a GPU."""

    tools: dict[str, Tool]
    reference: str
    cpu: tuple[Size, ...]
    cuda: tuple[Size, ...]


def closed_form(case: Case) -> Run:
    """HardNet-Aff."""
    from hardnet.functional import enforce_affine

    return through_torch(case, enforce_affine)


def factor_kept(case: Case) -> Run:
    """The same with the factor of a constant A computed beforehand, as in a layer."""
    from hardnet.functional import enforce_affine, factorize

    factor = factorize(case.A)

    def enforce(raw: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        return enforce_affine(raw, A.detach(), lower, upper, factor=factor)

    return through_torch(case, enforce)


def two_products(case: Case) -> Run:
    """``raw + A⁺ (A raw)``: both matrix products of a shared A without the bounds, a lower limit of the cost."""
    import torch

    factor = torch.linalg.pinv(case.A).mT
    return through_torch(case, lambda raw, A, lower, upper: raw + (raw @ A.mT) @ factor)


def nearest_point(case: Case) -> Run:
    """The exact projection."""
    from hardnet.functional import project_affine

    return through_torch(case, project_affine)


def _through(project: Callable[..., Tensor]) -> Callable[[Case], Run]:
    """A differentiable function as a tool."""
    return lambda case: through_torch(case, project)


def _ours(build: Callable[[Case], Run]) -> dict[str, Tool]:
    """This revision, the last one, and this one without numba."""
    tool = Tool(Peer((), build))
    return {OURS: tool, LAST: tool._replace(process=LAST), PLAIN: tool._replace(process=BARE)}


def _routines() -> dict[str, Tool]:
    """Torch's routines through autograd."""
    every = ALTERNATIVES | ON_GPU
    return {name: Tool(Peer((), _through(function)), OTHERS) for name, function in every.items()}


def _peers() -> dict[str, Tool]:
    """The other packages."""
    return {name: Tool(peer, OTHERS) for name, peer in (torch_peers() | jax_peers()).items()}


def _both(*sizes: tuple[int, int, int]) -> tuple[Size, ...]:
    """An A per sample, then one A for all."""
    return tuple(Size(*size, shared=shared) for shared in (False, True) for size in sizes)


SHARED = {
    KEPT: Tool(Peer((), factor_kept), THIS, shared_only=True),
    f"{LAST}, factor kept": Tool(Peer((), factor_kept), LAST, shared_only=True),
    PRODUCTS: Tool(Peer((), two_products), OTHERS, shared_only=True, enforces=False),
}
TASKS: dict[str, Task] = {
    "closed-form": Task(
        _ours(closed_form) | SHARED | _routines(),
        "qr",
        cpu=_both((1000, 1, 1), (1000, 2, 2), (1000, 10, 5), (200, 100, 100), (1024, 100, 50)),
        cuda=_both((10**6, 2, 2), (10**6, 6, 3), (10**5, 10, 5), (10**5, 16, 8), (8192, 50, 25), (8192, 100, 50)),
    ),
    "nearest-point": Task(
        _ours(nearest_point) | _peers(),
        OURS,
        cpu=(
            Size(1000, 1, 1),
            Size(1000, 2, 2),
            Size(1000, 10, 5),
            Size(1000, 10, 20),
            Size(256, 50, 50),
            Size(200, 100, 100),
            Size(200, 100, 100, equalities=50),
            Size(1024, 100, 50),
            Size(1024, 100, 50, shared=True),
        ),
        cuda=(
            Size(1000, 2, 2),
            Size(1000, 10, 20),
            Size(1024, 100, 50),
            Size(1024, 100, 50, shared=True),
            Size(2048, 100, 100),
            Size(2048, 100, 100, equalities=50),
        ),
    ),
}
"""The tasks by name; sizes are (B, n, m)."""
