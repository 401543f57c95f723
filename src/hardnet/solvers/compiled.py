"""A loop over DAQP, a compiled dual active-set solver: the fast way on a CPU when the extra ``qp`` is installed.

Called by `hardnet.solvers.projection_steps`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import MissingExtraError

if TYPE_CHECKING:
    from hardnet.solvers.problem import Problem

THREADED_ENTRIES = 2000
"""Entries of one sample's A below which a solve is so short that a second thread only waits for the interpreter."""


class Compiled(NamedTuple):
    """What the loop returns: y ``(B, n)``, dual ``(B, m)``, iterations ``(B,)`` and which samples it claims solved."""

    y: Tensor
    dual: Tensor
    iterations: Tensor
    finished: Tensor


def available() -> bool:
    """Whether DAQP can be imported."""
    return find_spec("daqp") is not None and find_spec("numpy") is not None


def solve_compiled(problem: Problem) -> Compiled:
    """``argmin |y - raw|`` for each sample in turn, over torch's number of threads where a solve is long enough."""
    if not available():
        raise MissingExtraError("daqp", "qp")
    batch, (m, n) = len(problem.raw), problem.size
    if batch == 0:
        return Compiled(*_outputs(problem))
    threads = min(torch.get_num_threads(), batch) if m * n >= THREADED_ENTRIES else 1
    bounds = [batch * part // threads for part in range(threads + 1)]
    spans = [range(first, last) for first, last in pairwise(bounds)]
    result = Compiled(*_outputs(problem))
    if threads == 1:
        _solve_span(problem, result, spans[0])
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda span: _solve_span(problem, result, span), spans))
    return result


def _outputs(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    iterations = torch.zeros(len(problem.raw), dtype=torch.long)
    finished = torch.zeros(len(problem.raw), dtype=torch.bool)
    return torch.zeros_like(problem.raw), torch.zeros_like(problem.lower), iterations, finished


def _solve_span(problem: Problem, result: Compiled, span: range) -> None:
    """Solve the samples of one span into the rows of ``result``, which share their memory with numpy."""
    import daqp
    import numpy as np

    # detached, since no_grad of the calling thread does not reach the threads of a pool
    m, n = problem.size
    linear = (-problem.raw.detach()[:, :n]).contiguous().numpy()
    matrix = problem.A.detach()[..., :m, :n].contiguous().numpy()
    lower, upper = (bound.detach()[:, :m].contiguous().numpy() for bound in (problem.lower, problem.upper))
    sense = np.where(lower == upper, 5, 0).astype(np.int32)
    hessian = np.eye(linear.shape[-1])
    cut = slice(span.start, span.stop)
    rows = repeat(matrix) if problem.shared else matrix[cut]
    found = [
        daqp.solve(hessian, *sample, primal_tol=1e-13)
        for sample in zip(linear[cut], rows, upper[cut], lower[cut], sense[cut], strict=False)
    ]
    points, _, flags, infos = zip(*found, strict=True)
    y, dual, iterations, finished = (part.numpy() for part in result)
    y[cut, :n], finished[cut] = points, np.array(flags) == 1
    dual[cut, :m], iterations[cut] = [info["lam"] for info in infos], [info["iterations"] for info in infos]
