"""``y = raw + A⁺ s`` and its derivative as formulas in torch, for transforms, export and machines without kernels.

With ``s = relu(lower - A raw) - relu(A raw - upper)``, ``V = diag(s != 0)``, ``w = A⁺' g``, ``step = A⁺ s`` and
``q = (A A')⁻¹ s = A⁺' step``, the gradient g of y gives

    g_raw = g - A' V w,   g_lower = w [s > 0],   g_upper = w [s < 0],   g_A = q (g - A' w)' - w step' - V w raw'.

The kernels implement the same formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hardnet.errors import RankError, ShapeError, sentence
from hardnet.functional.derivatives import join_batches
from hardnet.functional.samples import raise_invalid
from hardnet.kernels.limits import MOST_NUMBERS, MOST_ROWS
from hardnet.modes import full_precision, may_look
from hardnet.products import outer_sum, times
from hardnet.rows import Batch
from hardnet.shapes import require_float
from hardnet.structure import bound_size

# The factor of A in plain torch, with two operations: ``solve(s) = A⁺ s`` and ``solve_transposed(g) = A⁺' g``.
#
# There are three ways to compute it. `PseudoInverse` stores ``P = A⁺'`` itself, one for all samples if they share A.
# Few rows are factored by Gram-Schmidt in elementwise operations, which need no linear algebra library, read no value
# and can be exported anywhere; many rows by QR. `Gram` stores a Cholesky factor of ``A A'``, which is half the work of
# QR; it is used for many rows per sample where values may be read, because samples whose rows are too close to
# dependent must be found and solved by QR.
#
# Rows are divided by their largest entry first, so that no square overflows or underflows. The factor is NaN if rows
# are dependent up to the rounding of their dtype.


MOST_EXPORTED_ROWS = 64
"""The most rows for Gram-Schmidt in an exported graph, whose formats have no factorization."""
SAFE_DISTANCE = 1e-5
"""Below this squared distance of a unit row from the rows before it, Cholesky is not trusted with the sample."""


class Factor(Protocol):
    """The operations that the closed form needs of A."""

    def kept(self) -> tuple[Tensor, ...]:
        """The tensors from which `restore` rebuilds this factor."""
        ...

    def solve(self, right: Tensor) -> Tensor:
        """``A⁺ s`` for s ``(B, m)``: ``(B, n)``."""
        ...

    def solve_transposed(self, gradient: Tensor) -> Tensor:
        """``A⁺' g`` for g ``(B, n)``: ``(B, m)``."""
        ...


class PseudoInverse(NamedTuple):
    """``P = A⁺'``, ``(m, n)`` or ``(B, m, n)``."""

    P: Tensor

    def kept(self) -> tuple[Tensor, ...]:
        """P alone."""
        return (self.P,)

    def solve(self, right: Tensor) -> Tensor:
        """``P' s``."""
        return times(self.P.mT, right)

    def solve_transposed(self, gradient: Tensor) -> Tensor:
        """``P g``."""
        return times(self.P, gradient)


class Gram(NamedTuple):
    """``A A' = C C'`` of rows divided by `size`, and ``P`` for the samples whose rows are too close to dependent."""

    A: Tensor
    size: Tensor
    C: Tensor
    doubtful: Tensor
    P: Tensor

    def kept(self) -> tuple[Tensor, ...]:
        """All but A."""
        return self[1:]

    def solve(self, right: Tensor) -> Tensor:
        """``A' (A A')⁻¹ s``."""
        step = times(self.A.mT, self._multipliers(right))
        return self._put(step, times(self.P.mT, right[self.doubtful]))

    def solve_transposed(self, gradient: Tensor) -> Tensor:
        """``(A A')⁻¹ A g``."""
        return self._put(self._multipliers(times(self.A, gradient)), times(self.P, gradient[self.doubtful]))

    def _multipliers(self, right: Tensor) -> Tensor:
        solved = torch.cholesky_solve((right / self.size).unsqueeze(-1), self.C).squeeze(-1)
        return solved / self.size

    def _put(self, target: Tensor, exact: Tensor) -> Tensor:
        return target.index_put((self.doubtful,), exact) if len(self.P) else target


def make_factor(A: Tensor, dtype: torch.dtype, *, look: bool, exported: bool = False) -> PseudoInverse | Gram:
    """The factor of A ``(m, n)`` or ``(B, m, n)`` in float64.

    Args:
        A: The rows.
        dtype: The dtype in which A was given.
        look: Whether values may be read to decide what is computed.
        exported: Whether the graph is exported, to formats without a factorization.
    """
    m, n = A.shape[-2:]
    if (m <= MOST_ROWS and m * n <= MOST_NUMBERS) or (exported and m <= MOST_EXPORTED_ROWS):
        return PseudoInverse(by_gram_schmidt(A, dtype))
    if A.dim() == 3 and look:
        return by_cholesky(A, dtype)
    return PseudoInverse(by_qr(A, dtype))


def restore(A: Tensor, kept: Sequence[Tensor]) -> Factor:
    """Rebuild the factor of A from the tensors that `Factor.kept` returned."""
    return PseudoInverse(*kept) if len(kept) == 1 else Gram(A, *kept)


def rank_tolerance(A: Tensor, dtype: torch.dtype) -> float:
    """The distance of a unit row from the span of the rows before it below which the rows count as dependent.

    It is what rounding the numbers to `dtype` may cause.
    """
    return 4 * A.shape[-1] * torch.finfo(dtype).eps


def by_gram_schmidt(A: Tensor, dtype: torch.dtype) -> Tensor:
    """``A⁺' = L⁻' D⁻¹ R`` with ``A = L R``, R orthogonal by Gram-Schmidt (two passes per row), and ``D = R R'``.

    Unrolled over the rows. There is no square root, so that exact numbers stay exact.
    """
    size = _row_sizes(A)
    rows = (A / size).movedim(0, -1) if A.dim() == 3 else (A / size).unsqueeze(-1)  # (m, n, B): long inner loops
    R: list[Tensor] = []
    below: list[Tensor] = []
    squares: list[Tensor] = []
    for row in rows.unbind():
        along, left = _remove(row, R, squares)
        below.append(along)
        squares.append(left.square().sum(0))
        R.append(left)
    length = rows.detach().square().sum(1)
    clear = (torch.stack(squares).detach() - rank_tolerance(A, dtype) ** 2 * length).amin(0)
    D = torch.stack(squares) + nan_where_negative(clear)
    solved = [R[-1] / D[-1]]
    for k in range(len(R) - 2, -1, -1):  # L' P = D⁻¹ R from the last row up
        taken = torch.stack([below[j][k] for j in range(k + 1, len(R))]).unsqueeze(1)
        solved.insert(0, R[k] / D[k] - (taken * torch.stack(solved)).sum(0))
    P = torch.stack(solved)
    return (P.movedim(-1, 0) if A.dim() == 3 else P.squeeze(-1)) / size


def _remove(row: Tensor, R: list[Tensor], squares: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The coefficients ``(k, B)`` of a row ``(n, B)`` along the k vectors so far, and the remainder of the row."""
    if not R:
        return row[:0], row
    basis, D = torch.stack(R), torch.stack(squares)
    first = (basis * row).sum(1) / D
    left = row - (basis * first.unsqueeze(1)).sum(0)
    second = (basis * left).sum(1) / D
    return first + second, left - (basis * second.unsqueeze(1)).sum(0)


def by_qr(A: Tensor, dtype: torch.dtype) -> Tensor:
    """``A⁺' = R⁻¹ Q'`` with ``A' = Q R``."""
    size = _row_sizes(A)
    Q, R = torch.linalg.qr((A / size).mT)
    length = torch.linalg.vector_norm((A / size).detach(), dim=-1)
    clear = R.detach().diagonal(dim1=-2, dim2=-1).abs() - rank_tolerance(A, dtype) * length
    P = torch.linalg.solve_triangular(R, Q.mT, upper=True)
    return (P + nan_where_negative(clear.amin(-1, keepdim=True)).unsqueeze(-1)) / size


def by_cholesky(A: Tensor, dtype: torch.dtype) -> Gram:
    """``A A' = C C'`` of unit-sized rows ``(B, m, n)``; QR only for samples whose rows are too close to dependent."""
    size = _row_sizes(A)
    unit = A / size
    gram = torch.bmm(unit, unit.mT)
    C, failed = torch.linalg.cholesky_ex(gram)
    distance = (C.diagonal(dim1=-2, dim2=-1).square() / gram.diagonal(dim1=-2, dim2=-1)).amin(-1)
    doubtful = (~((distance > SAFE_DISTANCE) & (failed == 0))).nonzero().squeeze(-1)
    P = by_qr(A[doubtful], dtype) if len(doubtful) else A[:0]
    return Gram(A, size.squeeze(-1), C, doubtful, P)


def nan_where_negative(number: Tensor) -> Tensor:
    """Zero where the number is >= 0, NaN elsewhere: added to an answer, it makes bad samples NaN without a branch.

    Detached from the graph, since the derivative of the square root at zero would be NaN for every sample.
    """
    return number.detach().clamp_max(0).sqrt()


def _row_sizes(A: Tensor) -> Tensor:
    """The largest absolute entry of every row, ``(..., m, 1)``, a constant for autograd; NaN for a row of zeros."""
    size = A.detach().abs().amax(-1, keepdim=True)
    return torch.where(size > 0, size, torch.nan)


def factorize(A: Tensor) -> Tensor:
    """``A⁺'``, the transposed pseudo-inverse of a constant A, for ``enforce_affine(..., factor=factorize(A))``.

    Computed by QR in float64 and rounded once to the dtype of A.

    Args:
        A: ``(m, n)`` or ``(*batch, m, n)`` with linearly independent rows.

    Returns:
        The factor, in the shape and dtype and on the device of A.
    """
    require_float("A", A)
    if A.dim() < 2:
        raise ShapeError(sentence("A", "shape (m, n) or (*batch, m, n)", tuple(A.shape)))
    check_rows(A)
    factor = by_qr(to_double(A.detach()), A.dtype)
    if may_look(A) and bool(factor.isnan().any()):
        flat = A.detach().flatten(0, -3) if A.dim() > 2 else A.detach()
        raise_invalid(A.new_zeros(1), flat, None, None, A.shape[:-2])
    return factor.to(A.dtype).contiguous()


def check_rows(A: Tensor) -> None:
    """Refuse more rows than outputs."""
    m, n = A.shape[-2:]
    if m > n:
        remedy = "merge or drop redundant rows, or use the exact projection (method='projection')"
        raise RankError(sentence("A", f"at most n = {n} linearly independent rows", f"m = {m} rows", remedy))


def to_double(tensor: Any) -> Any:
    """The tensor in float64 if its device supports that; None stays None."""
    return tensor if tensor is None or tensor.device.type == "mps" else tensor.double()


Kept = tuple[Tensor, ...]
Gradients = tuple[Tensor, Tensor | None, Tensor, Tensor]
CORRECTIONS, MOST_CORRECTIONS = 2, 16
"""How often y is corrected by the remaining violation at y: always 2 times if no value may be read, else up to 16."""
VERIFIED = 12
"""The violation that may remain at y, in roundings of a row's size: below what a certificate allows, and above what a
good answer has."""


class TorchPath(NamedTuple):
    """The formulas in torch, in float64 whatever the dtype, so that float32 rows lose only their final rounding.

    The methods are documented in `hardnet.functional.affine.Path`.

    Attributes:
        look: Whether values may be read to decide how often a sample is corrected, and by which factor.
    """

    look: bool
    retries = False

    def wants_factor(self, A: Tensor) -> bool:
        """Never: this path makes its own factor."""
        return False

    def forward(self, rows: Batch) -> tuple[Tensor, Kept, int]:
        """``y = raw + A⁺ s``, corrected by the remaining violation at y until that is rounding."""
        dtype, wide = rows.raw.dtype, widen(rows)
        made = make_factor(wide.A, dtype, look=self.look) if wide.factor is None else PseudoInverse(wide.factor)
        y, violation = apply_factor(wide, made, dtype, self.look)
        lost = int(y.isnan().any(-1).sum()) if self.look else 0
        return y, (violation,) if wide.factor is not None else (violation, *made.kept()), lost

    def backward(self, gradient: Tensor, rows: Batch, kept: Kept, wants_matrix: bool) -> Gradients:
        """The formulas above with the factor of the forward."""
        (violation, *parts), wide = kept, widen(rows)
        violation = torch.where(violation.isnan(), 0.0, violation)  # bad samples, which send no gradient
        made = PseudoInverse(wide.factor) if wide.factor is not None else restore(wide.A, parts)
        grads = pull_back(to_double(gradient), wide, violation, made, wants_matrix)
        return tuple(None if grad is None else grad.to(rows.raw.dtype) for grad in grads)  # pyright: ignore[reportReturnType]


def by_formula(rows: Batch) -> Tensor:
    """``y = raw + A⁺ s`` of a flat batch, only in differentiable operations: any order of derivative, any graph."""
    dtype = rows.raw.dtype
    raw, A, lower, upper = widen(rows).numbers
    made = make_factor(A, dtype, look=rows.look, exported=rows.mode == "export")
    y = moved(raw, made.solve(signed_violation(times(A, raw), lower, upper)))
    with torch.no_grad():  # the correction at y is of the size of rounding, and so is its derivative
        rest = made.solve(to_bounds(times(A, y), lower, upper))
        rounded, rounding = to_double(moved(y, rest).to(dtype)), torch.finfo(dtype).eps
        size = row_size(A.abs().sum(-1), rounded, lower, upper, rounding)
        bad = unverified(to_bounds(times(A, rounded), lower, upper), size, rounding)
    return torch.where(bad.unsqueeze(-1), torch.nan, moved(y, rest).to(dtype))


def formula_gradients(
    gradient: Tensor, raw: Tensor, A: Tensor, lower: Tensor | None, upper: Tensor | None
) -> tuple[Tensor, ...]:
    """The gradients of raw, A, lower and upper ``(B, m)``, only in differentiable operations that read no value."""
    dtype, wide = raw.dtype, widen(Batch(raw, A, lower, upper))
    violation = signed_violation(times(wide.A, wide.raw), wide.lower, wide.upper)
    made = make_factor(wide.A, dtype, look=False)
    grads: Any = pull_back(to_double(gradient), wide, violation, made, True)
    return tuple(grad.to(dtype) for grad in grads)


class ClosedFormGradients(torch.autograd.Function):
    """The gradients of raw, A ``(B, m, n)`` or ``(m, n)``, lower and upper ``(B, m)`` from the gradient of y."""

    @staticmethod
    def forward(gradient: Tensor, *numbers: Any) -> tuple[Tensor, ...]:
        """The formulas at the head of this file, with a new factor of A."""
        return formula_gradients(gradient, *numbers[:4])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivative, through the differentiable formulas."""
        *inputs, _ = ctx.saved_tensors
        given = [index for index, part in enumerate(inputs) if part is not None]

        def formulas(*tensors: Tensor) -> tuple[Tensor, ...]:
            parts: list[Any] = list(inputs)
            for index, tensor in zip(given, tensors, strict=True):
                parts[index] = tensor
            return formula_gradients(*parts)

        pull: Any = torch.func.vjp(formulas, *(inputs[index] for index in given))[1]
        second: list[Tensor | None] = [None] * 6
        for index, grad in zip(given, pull(gradients), strict=True):
            second[index] = grad
        return tuple(second)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Merge the mapped dimension into the batch; a shared A has one gradient per mapped call."""
        sizes, flat = join_batches(info.batch_size, in_dims, inputs, (1, 1, 2, 1, 1, 2), share=False)
        found: Any = ClosedFormGradients.apply(*flat)
        grads = [grad.unflatten(0, sizes) for grad in found]
        if inputs[2].dim() - (in_dims[2] is not None) == 2:
            grads[1] = grads[1].sum(1)
        return tuple(grads), (0, 0, 0, 0)


def without(bad: Tensor, rows: Batch) -> Batch:
    """The rows with ``0 <= y <= 0`` at raw = 0 in place of bad samples ``(B, 1)``: derivatives of zero exist there."""
    own, A = bad.all() if rows.A.dim() == 2 else bad.unsqueeze(-1), rows.A
    eye = torch.eye(*A.shape[-2:], dtype=A.dtype, device=A.device)
    harmless = (own, eye), (bad, 0.0), (bad, 0.0), (own, eye)
    numbers = (
        None if part is None else torch.where(mask, value, part)
        for part, (mask, value) in zip(rows[1:5], harmless, strict=True)
    )
    return Batch._make((torch.where(bad, 0.0, rows.raw), *numbers, *rows[5:]))


def silenced(bad: Tensor, raw: Tensor, A: Tensor | None, lower: Tensor, upper: Tensor) -> Gradients:
    """The gradients with zeros for bad samples ``(B, 1)``."""
    if A is not None:
        A = torch.where(bad.all() if A.dim() == 2 else bad.unsqueeze(-1), 0.0, A)
    return torch.where(bad, 0.0, raw), A, torch.where(bad, 0.0, lower), torch.where(bad, 0.0, upper)


def careful(rows: Batch) -> Tensor:
    """Y of the samples that the kernels gave up, by QR in float64; NaN where that fails too."""
    wide = widen(rows)
    return apply_factor(wide, PseudoInverse(by_qr(wide.A, rows.raw.dtype)), rows.raw.dtype, look=True)[0]


def widen(rows: Batch) -> Batch:
    """The same numbers in float64 if the device supports it."""
    return Batch._make((*map(to_double, rows[:5]), *rows[5:]))


def apply_factor(rows: Batch, made: Factor, dtype: torch.dtype, look: bool) -> tuple[Tensor, Tensor]:
    """Y ``(B, n)`` in `dtype`, NaN for samples that do not reach their bounds, and s ``(B, m)``.

    The first step leaves the error of the factor, and rounding relative to the terms of A raw, which may be far larger
    than those of A y. So every sample is corrected at y, on all rows, since a step on only some of them would deviate
    from the formula. Where values may be read, only samples that need it are corrected more than once.

    Args:
        rows: In float64.
        made: The factor of A.
        dtype: The dtype of the answer.
        look: Whether values may be read to decide how often a sample is corrected.
    """
    raw, A, lower, upper = rows[:4]
    rounding, weight = torch.finfo(dtype).eps, A.abs().sum(-1)
    product = times(A, raw)
    violation = signed_violation(product, lower, upper)
    y = moved(raw, made.solve(violation))
    target = product.clamp(lower, upper)
    for count in range(MOST_CORRECTIONS if look else CORRECTIONS):
        rest = target - times(A, y)
        if look and count > 0:
            needs = unverified(rest, row_size(weight, y, lower, upper, rounding), rounding / 4)
            if not bool(needs.any()):
                if y.dtype == dtype:
                    return y, violation  # already verified, and no rounding to a narrower dtype follows
                break
            rest = torch.where(needs.unsqueeze(-1), rest, 0)
        y = moved(y, made.solve(rest))
    y = y.to(dtype)
    rest = to_bounds(times(A, to_double(y)), lower, upper)
    bad = unverified(rest, row_size(weight, to_double(y), lower, upper, rounding), rounding)
    return torch.where(bad.unsqueeze(-1), torch.nan, y), violation


def pull_back(gradient: Tensor, rows: Batch, violation: Tensor, made: Factor, wants_matrix: bool) -> Gradients:
    """The gradients as at the head of this file, from the factor and s; differentiable if the factor is."""
    A, w = rows.A, made.solve_transposed(gradient)
    active, below, above = split_by_side(violation, w)
    grad_raw = gradient - times(A.mT, active)
    if not wants_matrix:
        return grad_raw, None, below, above
    step = made.solve(violation)
    square = A.shape[-1] == A.shape[-2]  # then g - A'w is nothing but rounding, which q would amplify
    across = torch.zeros_like(gradient) if square else gradient - times(A.mT, w)
    left = (made.solve_transposed(step), -w, -active)
    return grad_raw, outer_sum(A, left, (across, step, rows.raw)), below, above


def to_bounds(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``s = clamp(p, lower, upper) - p``, for bounds known to be valid."""
    return product.clamp(lower, upper) - product


def signed_violation(product: Tensor, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """``s = relu(lower - p) - relu(p - upper) = clamp(p, lower, upper) - p``, NaN for samples with invalid numbers.

    Invalid are lower > upper, lower = +inf, upper = -inf, NaN, and an infinite product.
    """
    largest = torch.finfo(product.dtype).max
    room = torch.full_like(product, largest) if lower is None or upper is None else upper - lower
    for side, sign in ((lower, -1), (upper, 1)):
        if side is not None:  # negative where a bound is infinite on the wrong side
            room = torch.minimum(room, (sign * side).clamp_max(0) + largest)
    room = torch.minimum(room, largest - product.abs())
    return to_bounds(product, lower, upper) + nan_where_negative(room.amin(-1, keepdim=True))


def split_by_side(violation: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``w`` on the violated rows (V w), on rows below their lower bound, and on rows above their upper bound.

    Each is zero elsewhere.
    """
    side = violation.sign()
    active, below = w * side * side, w * side.clamp_min(0)
    return active, below, active - below


def moved(raw: Tensor, step: Tensor) -> Tensor:
    """``raw + step``, which is raw bit for bit where the step is zero: ``-0.0 - (0 - 0.0)`` keeps its sign."""
    return raw - torch.rsub(step, 0)


def row_size(weight: Tensor, y: Tensor, lower: Tensor | None, upper: Tensor | None, rounding: float) -> Tensor:
    """``|a|_1 max |y| + |bounds|``, ``(B, m)``, to which the rounding of a row is relative; `weight` is ``|a|_1``.

    Where all bounds of a row are 0, one rounding of ``|a|_1`` replaces them, as in a certificate: nothing else defines
    what is small there.
    """
    bounds = torch.zeros_like(weight) if lower is None and upper is None else bound_size(lower, upper, weight)
    return weight * y.abs().amax(-1, keepdim=True) + torch.where(bounds > 0, bounds, rounding * weight)


def unverified(rest: Tensor, size: Tensor, rounding: float) -> Tensor:
    """Samples ``(B,)`` with a row that misses its bounds by more than `VERIFIED` roundings of its size.

    Args:
        rest: ``clamp(A y, lower, upper) - A y``, ``(B, m)``; a sample with non-finite entries is unverified.
        size: The size of the rows at y, from `row_size`.
        rounding: The machine epsilon of the dtype that y is rounded to.
    """
    return ~(rest.abs() <= VERIFIED * rounding * size).all(-1)
