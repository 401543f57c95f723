"""Checks of shape, dtype and device for the functions on affine rows, without reading values or synchronizing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hardnet.errors import DeviceError, DTypeError, ShapeError, sentence
from hardnet.modes import GRAPHS, mode

Core = tuple[int | str, ...]
"""The shape of a number for one sample; a letter matches any size."""


NO_DOUBLE = ("mps",)
"""Kinds of devices without float64."""


def require_float(name: str, tensor: object) -> None:
    """Refuse anything that is not a floating-point tensor, on a device that has float64."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(sentence(name, "a tensor", type(tensor).__name__, "wrap it in torch.as_tensor"))
    if not tensor.is_floating_point():
        raise DTypeError(sentence(name, "a floating-point tensor", tensor.dtype, "call .double() or .float()"))
    if tensor.layout is not torch.strided:
        raise DTypeError(sentence(name, "a dense tensor", tensor.layout, "call .to_dense()"))
    if tensor.device.type in NO_DOUBLE:
        remedy = "run the network there and the layer on the CPU: layer(raw.cpu(), x.cpu())"
        raise DeviceError(sentence(name, "a device with float64, in which rows are judged", tensor.device, remedy))


def require_like(name: str, tensor: Tensor, raw: Tensor) -> None:
    """Refuse a tensor that is not a float tensor with the dtype and on the device of raw."""
    require_float(name, tensor)
    if tensor.dtype != raw.dtype:
        remedy = f"move the constraint or the network with .to({raw.dtype})"
        raise DTypeError(sentence(name, f"the dtype of raw, {raw.dtype}", tensor.dtype, remedy))
    if tensor.device != raw.device:
        remedy = f"move the constraint or the network with .to('{raw.device}')"
        raise DeviceError(sentence(name, f"the device of raw, {raw.device}", tensor.device, remedy))


def broadcast_batch(name: str, batch: torch.Size, own: torch.Size) -> torch.Size:
    """Broadcast the batch shape so far with that of another argument; a batch never broadcasts along rows."""
    if own == batch or not own:
        return batch
    try:
        return joint_batch(batch, own)
    except RuntimeError:
        expected = f"batch dimensions that broadcast with {tuple(batch)}"
        raise ShapeError(sentence(name, expected, tuple(own))) from None


def joint_batch(*shapes: torch.Size) -> torch.Size:
    """The batch that these shapes broadcast to; torch's function, whose first call imports sympy, only in a graph."""
    told = [shape for shape in shapes if shape]
    if all(shape == told[0] for shape in told):
        return told[0] if told else torch.Size()
    rank, joint = max(map(len, told)), []
    for sizes in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in told), strict=True):
        wide = [size for size in sizes if size != 1]
        if mode() in GRAPHS or any(size != wide[0] for size in wide):
            return torch.broadcast_shapes(*told)
        joint.append(wide[0] if wide else 1)
    return torch.Size(joint)


def check_matrix(raw: Tensor, A: Tensor) -> torch.Size:
    """Check raw ``(*batch, n)`` against A ``(m, n)`` or ``(*batch, m, n)``; return the joint batch shape."""
    require_float("raw", raw)
    if raw.dim() == 0:
        raise ShapeError(sentence("raw", "shape (*batch, n)", tuple(raw.shape), "give it an output dimension"))
    require_like("A", A, raw)
    if A.dim() < 2 or A.shape[-1] != raw.shape[-1]:
        expected = f"shape (m, {raw.shape[-1]}) or (*batch, m, {raw.shape[-1]})"
        raise ShapeError(sentence("A", expected, tuple(A.shape), f"raw has shape {tuple(raw.shape)}"))
    return broadcast_batch("A", raw.shape[:-1], A.shape[:-2])


def check_bound(name: str, bound: Tensor | float | None, raw: Tensor, m: int) -> Tensor | None:
    """Check one bound ``(m,)`` or ``(*batch, m)``; a number or 0-dim tensor is the bound of every row."""
    if bound is None:
        return None
    if isinstance(bound, (int, float)):
        return spread(raw.new_full((), float(bound)), (m,))
    require_float(name, bound)
    if bound.dim() == 0:
        return spread(bound.to(dtype=raw.dtype, device=raw.device), (m,))
    require_like(name, bound, raw)
    if bound.shape[-1] != m:
        remedy = "a bound needs one entry per row of A"
        raise ShapeError(sentence(name, f"shape ({m},) or (*batch, {m})", tuple(bound.shape), remedy))
    return bound


def spread(number: Tensor, core: Core) -> Tensor:
    """Expand one number to every entry of a vector: as a view, except in export, where it is materialized.

    AOTInductor inlines a constant number into its code and then cannot handle a view of a view of it.
    """
    if mode() == "export":
        return number * number.new_ones(core)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return number.expand(core)  # pyright: ignore[reportCallIssue, reportArgumentType]


def check_number(name: str, number: Tensor | float, raw: Tensor) -> Tensor:
    """Check one number per sample, ``(*batch)`` or ``(*batch, 1)``; all samples may share a single number."""
    if isinstance(number, (int, float)):
        return raw.new_full((), float(number))
    require_float(name, number)
    number = number.to(raw) if number.dim() == 0 else number
    require_like(name, number, raw)
    return fit(name, number, raw, (), moving=False)


def fit(name: str, value: Tensor, like: Tensor, core: Core, *, moving: bool) -> Tensor:
    """The rule for shapes: `value` as ``(*batch, *core)`` for the batch of `like` ``(*batch, n)``, or as ``core``.

    A batch dimension of 1 broadcasts. If the core is one number, ``(*batch, 1)`` is taken as ``(*batch)``. A value that
    does not depend on x (`moving` is False) may omit the batch, and one number is used for every entry of a vector.
    """
    batch, own = like.shape[:-1], value.shape
    if not moving and _agree(own, core):
        return value
    if not moving and not own and len(core) == 1:
        return spread(value, core)
    if len(own) == len(batch) + len(core) and _agree(own[len(batch) :], core) and _spreads(own, batch):
        return value
    if not core and len(own) == len(batch) + 1 and own[-1] == 1 and _spreads(own, batch):
        return value.squeeze(-1)
    raise ShapeError(_shape_message(name, own, batch, core, moving=moving))


def spell(shape: Sequence[object]) -> str:
    """A shape as Python writes it, with letters for unknown sizes: ``(m, 3)``, ``(3,)``."""
    entries = ", ".join(str(size) for size in shape)
    return f"({entries},)" if len(shape) == 1 else f"({entries})"


def _agree(own: Sequence[int], core: Core) -> bool:
    """Whether a shape matches the core; a letter matches any size."""
    if len(own) != len(core):
        return False
    for size, want in zip(own, core, strict=True):  # noqa: SIM110, a generator costs more than the check
        if not isinstance(want, str) and size != want:
            return False
    return True


def _spreads(own: Sequence[int], batch: torch.Size) -> bool:
    """Whether each leading dimension is that of the batch, or 1."""
    for size, want in zip(own, batch, strict=False):  # noqa: SIM110, a generator costs more than the check
        if size != want and size != 1:
            return False
    return True


def _shape_message(name: str, own: torch.Size, batch: torch.Size, core: Core, *, moving: bool) -> str:
    """The error message: the shape expected for this batch, and the likely fix."""
    full = (*batch, *core)
    forms = [] if moving else [core]
    forms += [full] if batch or moving else []
    forms += [] if core else [(*batch, 1)]
    wanted = " or ".join(dict.fromkeys(spell(form) for form in forms))
    expected = f"shape {wanted} for raw of batch {spell(batch)}"
    return sentence(name, expected, tuple(own), _likely_slip(own, batch, core, moving=moving))


def _likely_slip(own: torch.Size, batch: torch.Size, core: Core, *, moving: bool) -> str:
    """A hint on how to turn the wrong shape into the right one."""
    full = (*batch, *core)
    if not moving:
        return "a constant has no batch dimensions, or those of raw"
    if len(core) == 2 and _agree(own, (*batch, core[1])):
        return "for one row per sample add .unsqueeze(-2)"
    if len(core) == 1 and _agree(own, batch):
        known = isinstance(core[0], int) and core[0] != 1  # a letter matches any size, including 1
        return "for one entry per sample add .unsqueeze(-1)" + (f".expand{spell(full)}" if known else "")
    if len(core) == 1 and _agree(own, (*batch, 1)):
        return f"for one number in all entries add .expand{spell(full)}"
    if _agree(own, core) or not own:
        return f"a function of x returns one value per sample: add .expand{spell((*batch, *own) if own else full)}"
    return "a function of x returns the batch of raw in front"


def check_affine(
    raw: Tensor, A: Tensor, lower: Tensor | float | None, upper: Tensor | float | None
) -> tuple[torch.Size, Tensor | None, Tensor | None]:
    """Check all four arguments of ``lower <= A y <= upper``; return the joint batch shape and the bounds."""
    batch, m = check_matrix(raw, A), A.shape[-2]
    lower, upper = check_bound("lower", lower, raw, m), check_bound("upper", upper, raw, m)
    for name, bound in (("lower", lower), ("upper", upper)):
        if bound is not None:
            batch = broadcast_batch(name, batch, bound.shape[:-1])
    return batch, lower, upper
