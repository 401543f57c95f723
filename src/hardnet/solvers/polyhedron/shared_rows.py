"""The nearest point for many constant rows: the active sets of all samples in batches of dense products.

1. Equalities are eliminated.
2. The active rows are guessed.
3. ``K_JJ dual = (G q - bound)_J`` makes them tight. Rows with a multiplier of the wrong sign leave, violated ones join,
   and the samples that changed are solved again; for those that still change, more splitting steps make a new guess.

Where no value may be read, the samples to solve again are a fixed share of the batch, with the open ones first. The
caller checks the optimality conditions of every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import hardnet.kernels.gpu.affine as gpu
from hardnet.kernels.cpu.launch import HAS_NUMBA
from hardnet.kernels.cpu.ready import ready
from hardnet.kernels.limits import MOST_ON_CHIP, MOST_ROWS_TO_AN_OUTPUT
from hardnet.products import align, exponent, shift_rows, times, times_aligned
from hardnet.rows import Batch
from hardnet.solvers.polyhedron.active import CHUNK_ENTRIES, first_rows, groups
from hardnet.solvers.polyhedron.pivoting import KERNEL_ROWS, Pivoted, pivot
from hardnet.solvers.polyhedron.problem import Problem

# ``K_JJ w = target_J`` for each sample's own rows J of one matrix K: batched Cholesky factors in blocks.
#
# The active rows come first and are padded with rows of the identity: to their number rounded up to a ladder of sizes
# where values may be read, else to all rows. A diagonal, `SHARED_RIDGE`, keeps dependent rows factorizable;
# corrections remove its effect. If the answer is not unique, it is the one nearest to the starting point: from zero,
# duplicate rows share evenly.


SHARED_RIDGE = 1e-11
"""Added to the unit diagonal: above rounding of a factor, below any angle that the answer could resolve."""
BLOCK = {"cpu": 1 << 30, "cuda": 64}
"""Columns that are factorized at once: on a GPU most of the time is then spent in products of blocks."""
PART_OF_MEMORY = 32
"""One chunk of factors takes at most one part in this many of the memory of a GPU."""
SHARED_SOLVES = 3
"""The number of solves: one solution and two corrections."""


class Blocks(NamedTuple):
    """``K_JJ + r I = L L'``, r a ridge; L is ``(B, size, size)``, with inverses as diagonal blocks."""

    L: Tensor
    width: int

    def spans(self) -> list[tuple[int, int]]:
        """First and last column of each block."""
        size = self.L.shape[-1]
        return [(first, min(first + self.width, size)) for first in range(0, size, self.width)]

    def solve(self, right: Tensor) -> Tensor:
        """``(L L')^-1 right``: ``(B, size)``."""
        found = right.unsqueeze(-1).clone()
        for first, last in self.spans():
            row = found[:, first:last]
            if first:
                row = torch.baddbmm(row, self.L[:, first:last, :first], found[:, :first], alpha=-1)
            found[:, first:last] = torch.bmm(self.L[:, first:last, first:last], row)
        for first, last in reversed(self.spans()):
            row = found[:, first:last]
            if last < found.shape[1]:
                row = torch.baddbmm(row, self.L[:, last:, first:last].mT, found[:, last:], alpha=-1)
            found[:, first:last] = torch.bmm(self.L[:, first:last, first:last].mT, row)
        return found.squeeze(-1)


def factorize(K: Tensor, index: Tensor | None, kept: Tensor) -> Blocks:
    """Factorize the rows and columns `index` ``(B, size)`` of K ``(k, k)``; the identity where they are not `kept`.

    Without an index these are all rows in order.

    The factorization is left-looking: a block of columns is read from K, corrected by one product with the blocks
    before it, and written once.
    """
    size, width = kept.shape[-1], min(BLOCK.get(K.device.type, 64), kept.shape[-1])
    blocks = Blocks(K.new_empty(len(kept), size, size), width)
    L = blocks.L
    for first, last in blocks.spans():
        panel = _columns(K, index, kept, first, last)
        if first:
            panel = torch.baddbmm(panel, L[:, first:, :first], L[:, first:last, :first].mT, alpha=-1)
        corner = torch.linalg.cholesky_ex(panel[:, : last - first]).L
        eye = torch.eye(last - first, dtype=K.dtype, device=K.device).expand_as(corner)
        inverse = torch.linalg.solve_triangular(corner, eye, upper=False)
        L[:, first:last, first:last] = inverse
        if last < size:
            L[:, last:, first:last] = torch.bmm(panel[:, last - first :], inverse.mT)
    return blocks


def solve_shared(
    K: Tensor, active: Tensor, target: Tensor, look: bool, start: Tensor | None = None, solves: int = SHARED_SOLVES
) -> Tensor:
    """``w`` with ``K_JJ w_J = target_J``, zero off J: ``(B, k)``.

    Args:
        K: ``(k, k)``, unit diagonal.
        active: J as a mask, ``(B, k)``.
        target: ``(B, k)``.
        look: Whether the number of active rows may be read to decide the size of the factors.
        start: A first answer, ``(B, k)``; zero by default.
        solves: The number of solves: one solution and its corrections.
    """
    result = torch.zeros_like(target)
    start = result if start is None else torch.where(active, start, 0.0)
    for samples, size in groups(active, 1) if look else _whole(active):
        found = _solve_blocks(K, active[samples], target[samples], start[samples], size, solves)
        result = result.index_copy(0, samples, found)
    return result


def _solve_blocks(K: Tensor, active: Tensor, target: Tensor, found: Tensor, size: int, solves: int) -> Tensor:
    if len(active) == 1:  # a batch of one uses other routines, which sum in another order
        return _solve_blocks(K, active.expand(2, -1), target.expand(2, -1), found.expand(2, -1), size, solves)[:1]
    index, kept = (None, active) if size == active.shape[-1] else first_rows(active, size)
    factor = factorize(K, index, kept)
    for _ in range(solves):
        left = torch.where(active, target - times_aligned(K, found), 0.0)
        if index is None:
            found = found + factor.solve(left)
        else:
            found = found.scatter_add(-1, index, factor.solve(left.gather(-1, index)))
    return found


def _columns(K: Tensor, index: Tensor | None, kept: Tensor, first: int, last: int) -> Tensor:
    """Rows from `first` on and columns from `first` to `last` of the matrix to factorize."""
    both = kept[:, first:, None] & kept[:, None, first:last]
    own = K[first:, first:last] if index is None else K[index[:, first:, None], index[:, None, first:last]]
    panel = torch.where(both, own, 0.0)
    corner = panel[:, : last - first].diagonal(dim1=-2, dim2=-1)
    corner.copy_(torch.where(kept[:, first:last], corner + SHARED_RIDGE, 1.0))
    return panel


def _whole(active: Tensor) -> Iterator[tuple[Tensor, int]]:
    """All samples at full size, in chunks that fit the memory."""
    batch, size = active.shape
    every = torch.arange(batch, device=active.device)
    for chunk in every.split(max(1, _entries(active.device) // size**2)):
        yield chunk, size


def _entries(device: torch.device) -> int:
    """The most numbers in one chunk of factors: on a GPU a part of its memory, since small chunks leave it idle."""
    if device.type != "cuda":
        return CHUNK_ENTRIES["cpu"]
    return torch.cuda.get_device_properties(device).total_memory // (8 * PART_OF_MEMORY)


# Constant rows, prepared once for every sample: equalities eliminated, one Gram matrix of the other rows.
#
# With unit equality rows C, the projector ``P = I - C^+ C`` onto their null space, and the other rows scaled to length
# one in it, ``|P g_i| = 1``, the nearest point is
#
#     y = q - P G'dual,     q = raw - C^+ (C raw - b),     lower <= G q - K dual <= upper,     K = G P G'
#
# so that only the multipliers of the other rows are unknown, and all samples share K. Numbers are float64, in the row
# units of `hardnet.solvers.polyhedron.problem`.


SOFT_WEIGHT, STIFF_WEIGHT = 4.0, 40.0
"""Weights rho of unit rows in a splitting step: for few active rows, and for nearly as many as outputs."""
RELAXATION = 1.6
"""Over-relaxation of a splitting step."""
MOST_DEPENDENT = 1e5
"""The largest norm of ``C^+`` for which unit equality rows are eliminated: beyond it the general solver takes over."""
WITHIN = 1e-7
"""A row is determined by the equalities if less than this fraction of its length is in their null space."""
EQUALITY_STEPS = 3
"""Steps that bring a point onto the equalities: each gains as many digits as the condition of C permits."""


Product = Callable[[Tensor, Tensor], Tensor]
"""``A v`` for each sample v ``(B, n)``."""


class SharedRows(NamedTuple):
    """The factors of constant rows A ``(m, n)``: p of them equalities, k others.

    Attributes:
        equal: Indices of the equalities, ``(p,)``.
        free: Indices of the other rows, ``(k,)``.
        C: Equality rows of length one, ``(p, n)``.
        inverse: ``(C^+)'``, ``(p, n)``.
        length: ``|a_i|`` of the equalities, ``(p,)``.
        G: The other rows, of length one in the null space of C; zero if the equalities determine the row, ``(k, n)``.
        scale: ``a_i = scale_i g_i``; 1 if the equalities determine the row, ``(k,)``.
        gram: K, ``(k, k)``.
        soft: ``RELAXATION / 2 I - RELAXATION (I + SOFT_WEIGHT K)^-1``, the matrix of a splitting step, ``(k, k)``.
        stiff: The same with `STIFF_WEIGHT`.
    """

    equal: Tensor
    free: Tensor
    C: Tensor
    inverse: Tensor
    length: Tensor
    G: Tensor
    scale: Tensor
    gram: Tensor
    soft: Tensor
    stiff: Tensor

    def aligned(self) -> SharedRows:
        """The same with rows and outputs padded as in `Problem` on a CPU."""
        wide = {name: align(getattr(self, name), 2) for name in ("C", "inverse", "G", "gram", "soft", "stiff")}
        return self._replace(**wide, length=align(self.length, absent=1.0), scale=align(self.scale, absent=1.0))


def prepare(A: Tensor, equality: Tensor | None = None) -> SharedRows | None:
    """Factorize constant rows A ``(m, n)``; None if the equalities are too dependent to be eliminated.

    Args:
        A: ``(m, n)``, finite.
        equality: Which rows are equalities in every sample, ``(m,)``; None for none, and then no value of A is read.
    """
    A = A.detach().double()
    A = shift_rows(A, exponent(A.abs().amax(-1)))
    free = torch.arange(len(A), device=A.device)
    equal, free = (free[:0], free) if equality is None else (free[equality], free[~equality])
    C, length = unit_rows(A[equal])
    if len(C) > A.shape[-1]:
        return None
    inverse, basis = _eliminate(C)
    if len(C) and not bool(torch.linalg.vector_norm(inverse) <= MOST_DEPENDENT):
        return None
    G, scale, reduced = _across(A[free], basis)
    gram = reduced @ reduced.mT
    return SharedRows(
        equal, free, C, inverse, length, G, scale, gram, _step(gram, SOFT_WEIGHT), _step(gram, STIFF_WEIGHT)
    )


def unit_rows(A: Tensor) -> tuple[Tensor, Tensor]:
    """The rows divided by their lengths, and the lengths; 1 for a zero row."""
    length = torch.linalg.vector_norm(A, dim=-1)
    length = torch.where(length > 0, length, 1.0)
    return A / length.unsqueeze(-1), length


def on_equalities(rows: SharedRows, point: Tensor, b: Tensor | float) -> tuple[Tensor, Tensor]:
    """``y = point - C'dual`` with ``C y = b``, and dual ``(B, p)``: for aligned rows and all points ``(B, n)``."""
    dual = point.new_zeros(len(point), len(rows.C))
    if len(rows.equal) == 0:
        return point, dual
    y = point
    for _ in range(EQUALITY_STEPS):
        way = times(rows.inverse.mT, times(rows.C, y) - b)
        dual = dual + times(rows.inverse, way)
        y = point - times(rows.C.mT, dual)
    return y, dual


def _eliminate(C: Tensor) -> tuple[Tensor, Tensor | None]:
    """``(C^+)'`` ``(p, n)`` and an orthonormal basis ``(n, n - p)`` of the null space; None if that is everything."""
    count = len(C)
    if count == 0:
        return C, None
    Q, R = torch.linalg.qr(C.mT, mode="complete")
    inverse = torch.linalg.solve_triangular(R[:count], Q[:, :count].mT, upper=True)
    return inverse, Q[:, count:]


def _across(A: Tensor, basis: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """G, scale, and the rows of G in the basis: of length one, or zero if the equalities determine the row."""
    reduced = A if basis is None else A @ basis
    length = torch.linalg.vector_norm(reduced, dim=-1)
    own = length > WITHIN * torch.linalg.vector_norm(A, dim=-1)
    scale = torch.where(own, length, 1.0)
    rows = torch.where(own.unsqueeze(-1), A, 0.0) / scale.unsqueeze(-1)
    return rows, scale, torch.where(own.unsqueeze(-1), reduced, 0.0) / scale.unsqueeze(-1)


def _step(gram: Tensor, rho: float) -> Tensor:
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(eye + rho * gram)
    return RELAXATION / 2 * eye - RELAXATION * torch.cholesky_inverse(factor)


# A guess of the active rows of constant rows: splitting steps for the whole batch, or one launch of pivots on a GPU.
#
# Splitting works on the products ``v = G y - G q``, which start at zero, with bounds shifted likewise. The steps
#
#     s = clamp(t, low, high),     t <- t + relaxation ((I + rho K)^-1 and the bounds' reflection of 2 s - t)
#
# are over-relaxed, and each is one product with a constant matrix for all samples. At the end ``t - s`` is the
# multiplier divided by rho, and the rows with t beyond a bound are the guess. Any number of steps is safe, since the
# guess is verified.


def split_steps(step: Tensor, low: Tensor, high: Tensor, state: Tensor, count: int) -> Tensor:
    """The state t ``(B, k)`` after `count` steps ``t <- (1 - relaxation/2) t + r step`` with ``r = 2 s - t``.

    Args:
        step: `SharedRows.soft` or `SharedRows.stiff`.
        low: Lower bounds minus ``G q``, ``(B, k)``.
        high: Upper bounds minus ``G q``, ``(B, k)``.
        state: The t to start from; zero is ``y = q``.
        count: The number of steps.
    """
    for _ in range(count):
        reflected = torch.lerp(state, state.clamp(low, high), 2.0)
        state = torch.addmm(state, reflected, step, beta=1 - RELAXATION / 2)
    return state


def stiffen(state: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The state with the same multipliers ``rho (t - s)`` for the weight `STIFF_WEIGHT` instead of `SOFT_WEIGHT`."""
    return torch.lerp(state.clamp(low, high), state, SOFT_WEIGHT / STIFF_WEIGHT)


def sides_of(state: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """+1 beyond the upper bound, -1 beyond the lower, 0 between: ``(B, k)``."""
    return (state > high).to(state) - (state < low).to(state)


def guess_of(state: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The sides of a stiff state and its multipliers: ``(B, k)`` each."""
    return sides_of(state, low, high), STIFF_WEIGHT * (state - state.clamp(low, high))


def pivots_on_chip(rows: SharedRows) -> bool:
    """Whether a GPU holds a sample's whole tableau, so that one launch finds the active rows exactly."""
    return rows.gram.is_cuda and 0 < len(rows.gram) <= KERNEL_ROWS and gpu.HAS_TRITON


def pivoted(rows: SharedRows, product: Tensor, low: Tensor, high: Tensor, slack: Tensor) -> Pivoted:
    """The exact multipliers by `solvers.polyhedron.pivoting`; `low` and `high` bound ``G y``, ``(B, k)``."""
    gram = rows.gram.expand(len(product), -1, -1)
    return pivot(gram, product, low, high, slack, 10 * sum(rows.G.shape) + 50)


# Constant rows, many of them: when their factors are shared by all samples, and how they are made.
#
# The solver is `shared_rows`: equalities are eliminated once, the other rows have one Gram matrix, and the active sets
# of all samples are found in batches. A layer keeps the factors; a plain function call makes them where that pays off.


LEAST_ROWS = 16
"""The number of rows below which other methods are faster."""
LEAST_SAMPLES = 16
"""The batch size on a CPU below which samples are solved one by one."""
ELIMINATED = 8
"""The number of equalities whose elimination pays off on a CPU without kernels, however many other rows there are."""


def prepare_rows(A: Tensor, equality: Tensor | None = None) -> SharedRows | None:
    """The factors of a constant A for ``project_affine(..., shared=)``, in float64; None if it has none.

    Args:
        A: ``(m, n)``.
        equality: Which rows are equalities in every sample, ``(m,)`` bool; None if not known: then no value is read.
    """
    if A.is_meta or (equality is not None and not bool(A.isfinite().all())):
        return None
    return prepare(A, None if equality is None else equality.to(A.device))


def rows_for(rows: Batch, given: SharedRows | None) -> SharedRows | None:
    """The factors that this call uses: those `given`, or its own if they pay off for the batch; else None.

    A is one matrix with at least `LEAST_ROWS` rows. If values may not be read and no factors are given, the equalities
    are not known and are treated like other rows.
    """
    A, (m, n), on_gpu = rows.A, rows.A.shape[-2:], rows.raw.is_cuda
    if on_gpu and max(m, n) <= MOST_ON_CHIP:
        return None
    if len(rows.raw) < (1 if on_gpu else LEAST_SAMPLES):
        return None
    if given is not None:
        return given if on_gpu or _pays(len(given.equal), rows) else None
    equality = _equalities(m, rows.lower, rows.upper) if rows.look else None
    count = 0 if equality is None else int(equality.sum())
    return prepare_rows(A, equality) if on_gpu or _pays(count, rows) else None


def _pays(equalities: int, rows: Batch) -> bool:
    """Whether batched products are faster on a CPU than one active set after the other.

    Kernels find active sets in half the time of batched products, unless there are many equalities, which they
    eliminate again for each sample.
    """
    m, n = rows.A.shape[-2:]
    if HAS_NUMBA and m <= MOST_ROWS_TO_AN_OUTPUT * n and (not rows.memory or ready("projection")):
        return equalities >= max(ELIMINATED, 2 * (m - equalities))
    return equalities >= ELIMINATED or 2 * m <= n


def _equalities(m: int, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """The rows with ``lower == upper`` in every sample, ``(m,)``."""
    if lower is None or upper is None:
        return torch.zeros(m, dtype=torch.bool)
    same = lower.detach() == upper.detach()
    return same.reshape(-1, m).all(0)


FIRST_STEPS = 50
"""Splitting steps of all samples."""
MORE_STEPS = 60
"""Stiff splitting steps that follow where no value may be read, so that few samples are open afterwards."""
AGAIN = ((0, 16), (150, 4), (0, 8), (450, 16), (0, 16))
"""Further rounds for the open samples, as pairs: the number of stiff splitting steps before the round (0: exchange rows
instead), and, where no value may be read, the k for which one sample in k can be solved again."""
LEAST_AGAIN = 64
"""At least this many samples can be solved again, however small the batch is."""
TIGHT = 8.0
"""How far a row may miss its bound and still count as tight, in slacks."""
NEGATIVE = 1e-13
"""A multiplier of the wrong sign below this fraction of the largest, or of the sample's unit, counts as zero."""


class _Reduced(NamedTuple):
    """The problem in the multipliers: ``low <= product - K dual <= high``, each ``(B, k)``."""

    product: Tensor
    low: Tensor
    high: Tensor
    slack: Tensor

    def take(self, index: Tensor) -> _Reduced:
        return _Reduced(*(part[index] for part in self))


class _Found(NamedTuple):
    """Multipliers for the given sides ``(B, k)``, the sides to try next, and whether nothing changed ``(B,)``."""

    dual: Tensor
    side: Tensor
    settled: Tensor


def answer(problem: Problem, rows: SharedRows, look: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Y ``(B, n)``, dual ``(B, m)`` and which samples settled ``(B,)``; values are read only if `look`.

    Pass the whole batch: the bits of a product over all samples depend on how many samples there are.
    """
    rows = rows.aligned()
    b = _of_rows(problem.lower, rows.equal, len(rows.C), 0.0) / rows.length
    start, _ = on_equalities(rows, problem.raw, b)
    reduced = _reduce(problem, rows, start)
    found = _multipliers(rows, reduced, look)
    y, held = on_equalities(rows, problem.raw - times(rows.G.mT, found.dual), b)
    dual = torch.zeros_like(problem.lower)
    dual[:, rows.free] = (found.dual / rows.scale)[:, : len(rows.free)]
    dual[:, rows.equal] = (held / rows.length)[:, : len(rows.equal)]
    return y, dual, found.settled


def shared_vjp(grad: Tensor, rows: SharedRows, active: Tensor, look: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``g = u + A_J'w`` with ``A_J u = 0``, as in `active.split`, and the error of ``A_J u``, ``(B,)``.

    Args:
        grad: g, ``(B, n)``, aligned.
        rows: The constant rows.
        active: J as a mask over the rows, ``(B, m)``; all equalities count as active.
        look: As in `answer`.
    """
    rows = rows.aligned()
    own = _of_rows(active.to(grad), rows.free, len(rows.G), 0.0) > 0
    start, _ = on_equalities(rows, grad, 0.0)
    w = solve_shared(rows.gram, own, times(rows.G, start), look, solves=2)
    u, held = on_equalities(rows, grad - times(rows.G.mT, w), 0.0)
    missed = torch.where(own, times(rows.G, u), 0.0)
    missed = torch.nn.functional.pad(missed, (0, 1)).abs().amax(-1)  # there may be equalities alone
    whole = torch.zeros_like(active, dtype=grad.dtype)
    whole[:, rows.free] = (w / rows.scale)[:, : len(rows.free)]
    whole[:, rows.equal] = (held / rows.length)[:, : len(rows.equal)]
    return u, whole, missed


def _of_rows(values: Tensor, index: Tensor, count: int, absent: float) -> Tensor:
    """Columns `index` of values ``(B, m)``, padded to `count`."""
    missing = count - len(index)
    return torch.nn.functional.pad(values[:, index], (0, missing), value=absent) if missing else values[:, index]


def _reduce(problem: Problem, rows: SharedRows, start: Tensor) -> _Reduced:
    """Bounds and slacks of the inequality rows, in units of G; no bounds if the equalities determine a row."""
    count = len(rows.G)
    own = rows.gram.diagonal() > 0
    low = _of_rows(problem.lower, rows.free, count, -torch.inf) / rows.scale
    high = _of_rows(problem.upper, rows.free, count, torch.inf) / rows.scale
    slack = _of_rows(problem.slack_at(start), rows.free, count, 0.0) / rows.scale
    low, high = torch.where(own, low, -torch.inf), torch.where(own, high, torch.inf)
    return _Reduced(times(rows.G, start), low, high, slack)


def _multipliers(rows: SharedRows, reduced: _Reduced, look: bool) -> _Found:
    """The multipliers of every sample, first guessed, then made exact."""
    if len(rows.gram) == 0:  # only equalities
        return _Found(
            reduced.product, reduced.product, torch.ones(len(reduced.product), device=reduced.product.device) > 0
        )
    if pivots_on_chip(rows):
        dual, side, _, finished = pivoted(rows, *reduced)
        return _Found(dual, side, finished)
    low, high = reduced.low - reduced.product, reduced.high - reduced.product
    state = split_steps(rows.soft, low, high, torch.zeros_like(low), FIRST_STEPS)
    state = stiffen(state, low, high)
    state = state if look else split_steps(rows.stiff, low, high, state, MORE_STEPS)
    found = _solve(rows, reduced, *guess_of(state, low, high), look, times)
    for steps, share in AGAIN:
        chosen = _open(found.settled, share, look)
        if len(chosen) == 0 or (steps and look and not state.is_cuda):  # a CPU has a better method for the rest
            break
        guess = found.side[chosen], found.dual[chosen]
        if steps:
            ends = low[chosen], high[chosen]
            part = split_steps(rows.stiff, *ends, state[chosen], steps)
            state, guess = state.index_copy(0, chosen, part), guess_of(part, *ends)
        found = _keep(found, chosen, _solve(rows, reduced.take(chosen), *guess, look, times_aligned))
    return found


def _open(settled: Tensor, share: int, look: bool) -> Tensor:
    """The samples to solve again: the open ones; where no value may be read, one in `share`, open ones first."""
    if look:
        return (~settled).nonzero().squeeze(-1)
    count = min(len(settled), max(LEAST_AGAIN, len(settled) // share))
    return settled.to(torch.uint8).argsort(stable=True)[:count]


def _keep(found: _Found, chosen: Tensor, again: _Found) -> _Found:
    """Write the new results into their places, except for samples that had settled."""
    done = found.settled[chosen]
    parts = []
    for old, new in zip(found, again, strict=True):
        mask = done.view(-1, *(1,) * (old.dim() - 1))
        parts.append(old.index_copy(0, chosen, torch.where(mask, old[chosen], new)))
    return _Found(*parts)


def _solve(rows: SharedRows, reduced: _Reduced, side: Tensor, start: Tensor, look: bool, product_of: Product) -> _Found:
    """Make the rows of `side` tight by multipliers near `start`, and find the sides to try next."""
    product, low, high, slack = reduced
    tight = low == high
    side = torch.where(tight, 1.0, side)
    active = side != 0
    bound = torch.where(side > 0, high, low)
    dual = solve_shared(rows.gram, active, torch.where(active, product - bound, 0.0), look, start)
    value = product - product_of(rows.gram, dual)
    room = TIGHT * slack
    least = NEGATIVE * dual.abs().amax(-1, keepdim=True).clamp_min(1.0)
    stays = active & ((side * dual >= -least) | tight)
    joins = sides_of(value, low - room, high + room)
    missed = active & ~((value - bound).abs() <= room)  # dependent rows that contradict each other, or NaN
    settled = (~(active ^ stays) & ~(~active & (joins != 0)) & ~missed).all(-1)
    return _Found(dual, torch.where(stays, side, torch.where(active, 0.0, joins)), settled)
