"""HardNet-Aff: ``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``, in closed form.

One autograd function, `ClosedForm`, carries its path (numba on a CPU, Triton on a GPU, plain torch) from the forward
to the backward. A gradient that is itself differentiated or mapped goes through `ClosedFormGradients`, which
differentiates the formulas; forward mode and export use the formulas only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from hardnet.errors import OptionError, UnsupportedSetError, sentence
from hardnet.functional.affine_formulas import (
    ClosedFormGradients,
    Gradients,
    Kept,
    PseudoInverse,
    TorchPath,
    by_formula,
    by_qr,
    careful,
    check_rows,
    formula_gradients,
    signed_violation,
    silenced,
    to_double,
    without,
)
from hardnet.functional.derivatives import join_batches
from hardnet.functional.samples import raise_invalid
from hardnet.functional.strict import refuse_without_room, tighten
from hardnet.kernels.backends import BACKENDS, find
from hardnet.kernels.gpu.affine import FusedPath
from hardnet.modes import full_precision, may_look, plain, signed
from hardnet.products import times
from hardnet.rows import Batch, take_rows

OnInvalid = Literal["raise", "nan"]
POLICIES = ("raise", "nan")
RECORDED = ("operator", "blind")
"""Paths whose backward consists of operations that graphs and batched gradients support; other paths read memory."""


class Path(Protocol):
    """One way to compute the closed form; NaN for a sample that it cannot bring to its bounds up to rounding."""

    retries: bool
    """Whether samples that it gives up are tried again by QR."""

    def wants_factor(self, A: Tensor) -> bool:
        """Whether `forward` and `backward` must be given ``P = A⁺'``."""
        ...

    def forward(self, rows: Batch) -> tuple[Tensor, Kept, int]:
        """Y ``(B, n)``, the tensors that `backward` needs, and how many samples are known to have no answer."""
        ...

    def backward(self, gradient: Tensor, rows: Batch, kept: Kept, wants_matrix: bool) -> Gradients:
        """The gradients of raw, A (if wanted), lower and upper ``(B, m)``."""
        ...


PATHS: dict[str, Path] = {
    **{backend.closed_form.name: backend.closed_form for backend in BACKENDS},
    "operator": FusedPath(operators=True),
    "torch": TorchPath(look=True),
    "blind": TorchPath(look=False),
}
"""Every way to compute the closed form, by name: `choose` returns a name, and the backward looks the path up by it."""


@full_precision
def enforce_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    *,
    factor: Tensor | None = None,
    strict: bool = False,
    on_invalid: OnInvalid = "raise",
) -> Tensor:
    """``y = raw + A⁺ (relu(lower - A raw) - relu(A raw - upper))``, so that ``A y = clamp(A raw, lower, upper)``.

    HardNet-Aff (Min & Azizan): rows that raw satisfies keep their value, violated rows land on their bound, and
    y - raw is in the row space of A. A raw output already inside the set is returned bit for bit. The rows of A must
    be linearly independent (so m <= n). Gradients flow to raw, A, lower and upper, to any order.

    A sample with bad numbers (NaN, lower > upper, dependent rows) becomes NaN and does not affect the others. Eager
    code on a CPU raises an error that names the samples instead, unless ``on_invalid="nan"``. Compiled code,
    transforms and accelerators never read values, so they always answer with NaN.

    Args:
        raw: The network's output, ``(*batch, n)``, in float64, float32, bfloat16 or float16 (the last two are
            computed in float32).
        A: ``(m, n)`` for all samples, or ``(*batch, m, n)``.
        lower: ``(m,)``, ``(*batch, m)`` or a number for all rows; None or -inf where there is no lower bound.
        upper: Like `lower`; ``lower == upper`` is an equality.
        factor: `factorize` of this A, to be reused over many calls; not for an A that requires grad.
        strict: Whether the inequality rows must hold in exact arithmetic for the floating-point numbers returned, at
            the cost of a few roundings of distance to the bound; see `hardnet.functional.rounding_bound` for
            equalities.
        on_invalid: ``"raise"`` or ``"nan"``.

    Returns:
        y ``(*batch, n)``, in the dtype and on the device of raw.

    Raises:
        ShapeError, DTypeError, DeviceError: The arguments do not fit together.
        RankError: m > n, a zero row, or rows that are dependent to rounding.
        NonFiniteError: NaN or infinity in raw or A.
        BoundsError: lower > upper, lower = +inf, upper = -inf, or a NaN bound.
    """
    if on_invalid not in POLICIES:
        raise OptionError(sentence("on_invalid", "'raise' or 'nan'", repr(on_invalid)))
    rows = take_rows(raw, A, lower, upper, factor)
    if A.shape[-2] > A.shape[-1] or (factor is not None and A.requires_grad):
        _refuse_rows(A)
    if rows.trivial:
        return raw.expand(*rows.shape, A.shape[-1])
    y = closed_form(rows, on_invalid == "raise")
    if strict:
        exact = _hold_exactly(y.to(raw.dtype), rows)
        refuse_without_room(y, exact, rows, on_invalid)
        y = exact
    return y if rows.raw is raw else y.to(raw.dtype).reshape(*rows.shape, A.shape[-1])


def closed_form(rows: Batch, refuse: bool) -> Tensor:
    """``y = raw + A⁺ s`` ``(B, n)``; samples without an answer are NaN, or refused where values may be read.

    Args:
        rows: The record of the call.
        refuse: Whether to raise an error for samples without an answer.
    """
    if rows.mode in ("forward", "export"):
        return by_formula(rows)
    path, named = choose(rows), rows.shape if refuse and rows.look else None
    if rows.mode == "func":
        return ClosedForm.apply(path, named, False, *rows[:5])[0]  # pyright: ignore[reportIndexIssue]
    if rows.learned:
        return ClosedForm.apply(path, named, True, *rows[:5])[0]  # pyright: ignore[reportIndexIssue]
    return _attempt(PATHS[path], named, rows)[0]


def choose(rows: Batch) -> str:
    """Name the path: a kernel if one takes these rows, else plain torch, which reads values only where it may."""
    kernel = find("closed_form", rows)
    if kernel is not None:
        return kernel.name
    if rows.mode == "compile" and FusedPath.takes_as_operator(rows):
        return "operator"
    return "torch" if rows.look else "blind"


class Saved(NamedTuple):
    """What the backward of a path needs beside its inputs.

    Attributes:
        again: The samples ``(k,)`` that were tried again and found; None for none.
        factor: ``A⁺'`` where the forward made it; None where it did not.
        kept: The tensors that the path keeps.
    """

    again: Tensor | None
    factor: Tensor | None
    kept: Kept

    @classmethod
    def of(cls, path: Path, rows: Batch, tensors: Sequence[Tensor]) -> Saved:
        """From the tensors of `flat`."""
        own = list(tensors)
        again = own.pop(0) if path.retries else None
        factor = own.pop(0) if rows.factor is None and path.wants_factor(rows.A) else None
        return cls(again, factor, tuple(own))

    def flat(self, path: Path, like: Tensor) -> Kept:
        """As tensors alone."""
        none = like.new_empty(0, dtype=torch.long)
        again = (none if self.again is None else self.again,) if path.retries else ()
        return (*again, *(() if self.factor is None else (self.factor,)), *self.kept)


class ClosedForm(torch.autograd.Function):
    """``y = raw + A⁺ s`` ``(B, n)`` and, without a derivative, the tensors that the backward of its path needs."""

    @staticmethod
    @signed
    def forward(path: str, named: torch.Size | None, keep: bool, *numbers: Any) -> tuple[Tensor, ...]:
        """Y and the kept tensors; `named` is the batch shape for errors that name samples, None to answer with NaN."""
        y, saved = _attempt(PATHS[path], named, Batch(*numbers))
        return (y, *saved.flat(PATHS[path], y)) if keep else (y,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs, y where bad samples are not refused but NaN, and the tensors that the path keeps."""
        ctx.path, named, ctx.keeps, *numbers = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*numbers, None if named is not None else output[0], *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @full_precision
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of raw, A, lower and upper."""
        saved, gradient, needs = ctx.saved_tensors, gradients[0], ctx.needs_input_grad[3:]
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        rows, y, path = Batch(*saved[:5]), saved[5], PATHS[ctx.path]
        bad = None if y is None else y[:, :1].isnan()
        look = may_look(gradient)
        if bad is not None and look and not bool(bad.any()):
            bad = None
        if bad is not None:
            gradient = torch.where(bad, 0.0, gradient)
        formulas = torch.is_grad_enabled() or not ctx.keeps or not (ctx.path in RECORDED or plain(gradient))
        if bad is not None and (formulas or look or (needs[1] and rows.A.dim() == 2)):  # a sum over all samples
            rows = without(bad, rows)
        if formulas:
            grads = ClosedFormGradients.apply(gradient, *rows[:5])
        else:
            again, factor, kept = Saved.of(path, rows, saved[6:])
            rows = rows if factor is None else rows._replace(factor=factor)
            if bad is not None and look and kept:  # the violation comes first; what a sample sends is summed in A
                kept = torch.where(bad, 0.0, kept[0]), *kept[1:]
            grads = path.backward(gradient, rows, kept, needs[1])
            grads = grads if again is None or not len(again) else _with_retried(grads, gradient, rows, again)
        if bad is not None:
            grads = silenced(bad, *grads)  # pyright: ignore[reportArgumentType]
        bounds = (
            None if bound is None or not needed else grad.sum(0) if bound.dim() == 1 else grad
            for grad, bound, needed in zip(grads[2:], rows[2:4], needs[2:4], strict=True)
        )
        return None, None, None, grads[0], grads[1], *bounds, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor], tuple[int]]:
        """Join the mapped dimension with the batch."""
        sizes, flat = join_batches(info.batch_size, in_dims[3:], inputs[3:], (1, 2, 1, 1, 2))
        y = ClosedForm.apply(*inputs[:3], *flat)[0]  # pyright: ignore[reportIndexIssue]
        return (y.unflatten(0, sizes),), (0,)


def _attempt(path: Path, named: torch.Size | None, rows: Batch) -> tuple[Tensor, Saved]:
    """Y of the path; samples that it gave up are tried again where it says so, and refused if that fails too."""
    A, made, again = rows.A, None, None
    if rows.factor is None and path.wants_factor(A):
        made = by_qr(to_double(A), A.dtype).to(A.dtype).contiguous()
        rows = rows._replace(factor=made)
    y, kept, lost = path.forward(rows)
    if lost and path.retries:
        at = y.isnan().any(-1).nonzero().squeeze(-1)
        answer = careful(rows.take(at))
        y, bad = y.index_put_((at,), answer), answer.isnan().any(-1)
        lost, again = int(bad.sum()), at[~bad]
    if lost and named is not None:
        raise_invalid(*rows[:4], named)
    return y, Saved(again, made, kept)


def _with_retried(grads: Gradients, gradient: Tensor, rows: Batch, again: Tensor) -> Gradients:
    """The gradients, with those of the samples `again` from the formulas: the path that gave them up has none."""
    found = formula_gradients(gradient[again], *rows.take(again)[:4])
    put = lambda own, new: own.index_put((again,), new)
    raw, A, lower, upper = put(grads[0], found[0]), grads[1], put(grads[2], found[2]), put(grads[3], found[3])
    if A is not None and A.dim() == 3:
        A = put(A, found[1])
    elif A is not None:
        A = formula_gradients(gradient, *rows[:4])[1]
    return raw, A, lower, upper


def _hold_exactly(y: Tensor, rows: Batch) -> Tensor:
    """Y ``(B, n)`` whose inequalities hold in exact arithmetic: the closed form applied to tightened bounds."""
    A = rows.A.detach().double()
    factor = PseudoInverse(by_qr(A, A.dtype))
    project = lambda point, low, high: point + factor.solve(signed_violation(times(A, point), low, high))
    return tighten(y, rows, project, y.dtype)


def _refuse_rows(A: Tensor) -> None:
    """Raise the error that applies: more rows than outputs, or a factor of an A that requires grad."""
    check_rows(A)
    raise UnsupportedSetError(sentence("factor", "None for an A that requires grad", "a factor", "leave it out"))
