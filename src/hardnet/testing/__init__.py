"""The contract of sets and layers as functions, for those of hardnet and for your own.

Each clause raises `ContractError` with one sentence that says what is violated and by how much.
"""

from __future__ import annotations

import copy
import io
import pickle
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from hardnet.certificate import check
from hardnet.errors import DTypeError, HardNetError, ShapeError, sentence
from hardnet.kernels.checking import KernelMismatchError, check_kernel
from hardnet.kernels.cpu.ready import waiting
from hardnet.layers.base import Guarantee, Layer
from hardnet.sets.arguments import number_leaves
from hardnet.sets.base import ConstraintSet
from hardnet.structure import BoxedRows
from hardnet.testing.poison import ContractError, check_poisoned_numbers, functions_of, require

__all__ = ["ContractError", "KernelMismatchError", "check_kernel", "check_layer", "check_set"]


@waiting()
def check_set(constraint: ConstraintSet, y: Tensor, x: Any = None) -> None:
    """Check the contract of a set at points y ``(batch, n)``, inside and outside of it.

    Residuals are non-negative, one per row; rounding errors are bounded relative to the scale; affine rows, where the
    set has them, agree with the residual; the set's own projection is inside the set; the residual of a sample does not
    depend on its batch. The same sums in another order may differ by ``4 (n + the widest number + 8)`` roundings of
    their terms, in any unit.
    """
    numbers = constraint.numbers(x, y)
    residual, scale = constraint.residual(numbers, y), constraint.scale(numbers, y)
    require(residual.shape == scale.shape, f"residual {tuple(residual.shape)} and scale {tuple(scale.shape)} differ")
    require(residual.shape[:-1] == y.shape[:-1], f"residual has batch {tuple(residual.shape[:-1])}")
    require(bool((residual >= 0).all()), "a residual is negative or NaN at a finite point")
    require(bool((scale >= 0).all()), "a scale is negative or NaN at a finite point")
    if constraint.polyhedral:
        _check_rows(constraint, numbers, y, residual)
    if constraint.projectable:
        require(check(constraint, constraint.project(numbers, y), x).ok, "the set's own projection leaves the set")
    alone = torch.stack([constraint.violation(y[i : i + 1], _at(x, i))[0] for i in range(len(y))])
    same = (alone - residual).abs() <= _roundings(numbers, y) * scale
    require(bool(same.all()), "the residual of a sample depends on its batch")


@waiting()
def check_layer(layer: Layer, x: Any, raw: Tensor, *, gradients: bool = True, compiled: bool = False) -> None:
    """Check the contract of a layer on a batch raw ``(batch, raw_dim)`` in float64.

    Args:
        layer: The layer under test.
        x: The input that its set depends on (first dimension: the batch), or None.
        raw: Raw outputs, some of them outside C(x).
        gradients: Whether to run `torch.autograd.gradcheck` for raw and, where x is a tensor of the dtype of raw, for
            x.
        compiled: Whether to compare with the layer under `torch.compile`.
    """
    if not hasattr(layer, "enforce"):  # not isinstance: a compiled layer passes too
        remedy = "the layer of a model is model.layer"
        raise DTypeError(sentence("layer", "an hn.layers.Layer", type(layer).__name__, remedy))
    y = layer(raw, x)
    shape = (*raw.shape[:-1], layer.constraint.dim or y.shape[-1])
    require(y.shape == shape, f"expected an output of shape {shape}, got {tuple(y.shape)}")
    require(y.dtype == raw.dtype and y.device == raw.device, f"{raw.dtype} on {raw.device} came back as {y.dtype}")
    require(bool(y.isfinite().all()), "a finite raw output came back non-finite")
    _check_feasible(layer, y, x)
    _check_identity(layer, x, raw, y)
    _check_independence(layer, x, raw, y)
    _check_ranks(layer, x, raw, y)
    _check_layout(layer, x, raw, y)
    _check_bad_sample(layer, x, raw, y)
    check_poisoned_numbers(layer, x, raw)
    _check_copies(layer, x, raw, y)
    _check_float32(layer, x, raw)
    _check_width(layer, x, raw)
    require(layer(raw[:0], _at(x, slice(0, 0))).shape == y[:0].shape, "an empty batch does not come back empty")
    if gradients:
        _check_gradients(layer, x, raw)
    if compiled:
        _check_compiled(layer, x, raw, y)


def _at(x: Any, index: Any) -> Any:
    """One sample (kept as a batch) or a slice of x, where x is a tensor."""
    if not isinstance(x, Tensor):
        return x
    return x[index : index + 1] if isinstance(index, int) else x[index]


def _roundings(numbers: Any, y: Tensor) -> float:
    """Rounding error of sums over the n outputs and the widest number of a set, relative to the size of their terms."""
    widest = max((size for _, leaf in number_leaves(numbers) for size in leaf.shape), default=1)
    return 4 * (y.shape[-1] + widest + 8) * torch.finfo(y.dtype).eps


def _check_rows(constraint: ConstraintSet, numbers: Any, y: Tensor, residual: Tensor) -> None:
    """``relu(A y - upper) + relu(lower - A y)`` of the rows equals the residual of the set, to rounding."""
    rows = constraint.rows(numbers, y)
    plain = BoxedRows(*rows)
    same = (plain.residual(y) - residual).abs() <= _roundings(numbers, y) * plain.scale(y)
    require(bool(same.all()), "the affine rows disagree with the residual")


def _check_feasible(layer: Layer, y: Tensor, x: Any) -> None:
    """An output is in C(x), to rounding or a tolerance, where the layer guarantees it."""
    if layer.guarantee in (Guarantee.EXACT, Guarantee.TOLERANCE):
        tolerance = None if layer.guarantee is Guarantee.EXACT else 1e-8
        certificate = check(layer, y, x, tolerance=tolerance)
        require(certificate.ok, f"an output is not in C(x): {certificate}")


def _check_identity(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """A raw output clearly inside C(x) is returned unchanged, bit for bit, where the method guarantees it."""
    if not layer.identity_inside or raw.shape != y.shape:
        return
    with torch.no_grad():
        middle = (layer(raw, x) + layer(0.1 - 0.7 * raw.flip(0), x)) / 2
        inside = _clearly_inside(layer.constraint, middle, x)
        again = layer(middle, x)
    require(torch.equal(again[inside], middle[inside]), "a raw output already in C(x) was changed")


def _clearly_inside(constraint: ConstraintSet, y: Tensor, x: Any) -> Tensor:
    """Samples that stay in C(x) under small steps in random directions, so that rounding does not matter."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    for _ in range(8):
        step = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
        inside &= (constraint.violation(y + 1e-6 * step, x) == 0).all(-1)
    return inside


def _check_independence(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """The result for a sample depends neither on the values of the other samples nor on the batch size."""
    with torch.no_grad():
        other = raw.clone()
        other[1:] = other[1:] * -3 + 0.5
        require(torch.equal(layer(other, x)[:1], y[:1]), "a sample's result changed with its batch mates")
        alone = torch.cat([layer(raw[i : i + 1], _at(x, i)) for i in range(len(raw))])
    require(torch.allclose(alone, y, rtol=1e-9, atol=1e-11), "a sample's result changed with the size of its batch")


def _check_ranks(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """One sample without a batch dimension, and batches of two and three dimensions, give the same results."""
    if x is not None and not isinstance(x, Tensor):
        return
    for view in (lambda part: part[0], lambda part: part[None], lambda part: part[None, :, None]):
        with torch.no_grad():
            result = layer(view(raw), None if x is None else view(x))
        expected, batch = view(y), tuple(view(y).shape[:-1])
        require(result.shape == expected.shape, f"a batch of shape {batch} came back as {tuple(result.shape)}")
        require(torch.allclose(result, expected, rtol=1e-9, atol=1e-11), f"a batch of shape {batch} changed results")


def _check_layout(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """Inputs in column-major memory, as a transposed product leaves them, or with the negative bit, give the same."""
    for view in (lambda part: part.mT.contiguous().mT, lambda part: torch.complex(part, -part).conj().imag):
        across = [view(part) if isinstance(part, Tensor) and part.dim() > 1 else part for part in (raw, x)]
        with torch.no_grad():
            off = (layer(*across) - y).abs().amax()
        same = bool(off <= 1e-6 * y.abs().amax())
        require(same, f"a result changed by {off.item():.1e} with the layout of raw in memory")


def _check_width(layer: Layer, x: Any, raw: Tensor) -> None:
    """Raw outputs of another width are refused by name."""
    for wrong in (raw[:, :-1], torch.cat([raw, raw[:, :1]], -1)):
        try:
            layer(wrong, x)
        except ShapeError:
            continue
        require(False, f"{wrong.shape[-1]} numbers per sample were taken in place of {raw.shape[-1]}")


def _check_bad_sample(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """NaN in raw gives an error, or NaN for that sample alone."""
    bad = raw.clone()
    bad[0, 0] = torch.nan
    try:
        with torch.no_grad():
            result = layer(bad, x)
    except HardNetError:
        return
    require(bool(result[0].isnan().any()), "a NaN raw output came back as a number")
    require(torch.equal(result[1:], y[1:]), "a NaN sample changed the results of its batch mates")


def _check_copies(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """A deep copy with a reloaded state dict and an unpickled layer give the same results."""
    with torch.no_grad():
        twin = copy.deepcopy(layer)
        twin.load_state_dict(layer.state_dict())
        require(torch.equal(twin(raw, x), y), "a deep copy with a reloaded state dict gives another result")
        if not _holds_local_functions(layer.constraint):
            buffer = io.BytesIO(pickle.dumps(layer))
            require(torch.equal(pickle.load(buffer)(raw, x), y), "an unpickled layer gives another result")


def _holds_local_functions(constraint: ConstraintSet) -> bool:
    """Whether the set holds a function that cannot be pickled (a lambda, a function inside a function)."""
    found = [
        part for module in constraint.modules() for part in (*vars(module).values(), *functions_of(module).values())
    ]
    for function in (part for part in found if isinstance(part, FunctionType)):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError):
            return True
    return False


def _check_float32(layer: Layer, x: Any, raw: Tensor) -> None:
    """The layer moved to float32 takes and returns float32, within 1000 times the certificate's tolerance.

    This coarse check only catches plain mistakes: ill-conditioned rows lose digits in float32 in any layer.
    """
    single = copy.deepcopy(layer).to(torch.float32)
    x = x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
    with torch.no_grad():
        y = single(raw.float(), x)
    require(y.dtype == torch.float32, f"float32 came back as {y.dtype}")
    if layer.guarantee is Guarantee.EXACT:
        certificate = check(single.constraint, y, x)
        worst = (certificate.violation / (certificate.tolerance + 1e-30)).max()
        require(bool(worst < 1e3), f"a float32 output is not in C(x): {certificate}")


def _check_gradients(layer: Layer, x: Any, raw: Tensor) -> None:
    """Gradients with respect to raw, and to x through the numbers of the set, agree with finite differences."""
    leaf = raw.detach().clone().requires_grad_()
    if layer.differentiable_numbers and isinstance(x, Tensor) and x.dtype == raw.dtype:
        moved = x.detach().clone().requires_grad_()
        torch.autograd.gradcheck(lambda r, u: layer(r, u), (leaf, moved))
    else:
        torch.autograd.gradcheck(lambda r: layer(r, x), (leaf,))


def _check_compiled(layer: Layer, x: Any, raw: Tensor, y: Tensor) -> None:
    """The compiled layer gives the same results."""
    with torch.no_grad():
        result = torch.compile(layer, backend="aot_eager", fullgraph=True)(raw, x)
    require(torch.allclose(result, y, rtol=1e-9, atol=1e-11), "the compiled layer gives another result")
