"""The nearest point of a polyhedron: which solver takes which structure, and what it says of its answer.

box alone                       clamp                         `functional.box`
box and up to 8 rows            in the rows' multipliers      `functional.box_rows`
up to 4 rows                    a fixed program               `functional.nearest_few`
constant rows, many of them     with shared factors           `functional.shared_rows`
anything else                   the general solver            `functional.polyhedron`
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardnet.functional import polyhedron
from hardnet.functional.affine import flatten
from hardnet.functional.box import project_box
from hardnet.functional.box_rows import MOST_ROWS as MOST_BOX_ROWS
from hardnet.functional.box_rows import project_box_rows
from hardnet.functional.half import HALF, narrow
from hardnet.functional.inputs import check_affine
from hardnet.functional.nearest_few import MOST_ROWS as MOST_FEW_ROWS
from hardnet.functional.nearest_few import dispatch, nearest_few
from hardnet.functional.nearest_plain import Nearest
from hardnet.functional.samples import keep_value
from hardnet.functional.transforms import full_precision
from hardnet.kernels.arguments import well_formed
from hardnet.modes import may_look, plain
from hardnet.rows import BoxedRows
from hardnet.solvers.solution import Status


def structure_of(rows: BoxedRows) -> str:
    """The structure that decides who projects, in words."""
    m = rows.A.shape[-2]
    if m == 0:
        return "a box alone: clamped"
    if rows.boxed:
        kept = f"a box and {m} row{'s' if m > 1 else ''}"
        return f"{kept}: solved in the multipliers of the rows" if m <= MOST_BOX_ROWS else f"{kept}: dense rows"
    return f"{m} row{'s' if m > 1 else ''}: " + ("a fixed program" if m <= MOST_FEW_ROWS else "the general solver")


def project_rows(raw: Tensor, rows: BoxedRows, **options: Any) -> Tensor:
    """``argmin |y - raw|`` over the polyhedron, by the table at the head of this file.

    Args:
        raw: ``(*batch, n)``.
        rows: The polyhedron.
        **options: Those of `project_affine`.
    """
    general = options.get("metric") is not None
    if not rows.boxed:
        return project_affine(raw, rows.A, rows.lower, rows.upper, **options)
    if general or rows.A.shape[-2] > MOST_BOX_ROWS:
        return project_affine(raw, *rows.dense(), **options)
    if rows.A.shape[-2] == 0 and options.get("gradient", "exact") == "exact":
        return project_box(raw, rows.box_lower, rows.box_upper, on_invalid=options.get("on_invalid", "raise"))
    known = {name: value for name, value in options.items() if name != "metric"}
    return project_box_rows(raw, *rows[:5], **known)


@full_precision
def project_affine(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None = None,
    upper: Tensor | float | None = None,
    **options: Any,
) -> Tensor:
    """``argmin |y - raw|  subject to  lower <= A y <= upper``: see `hardnet.functional.polyhedron.project_affine`."""
    few = isinstance(A, Tensor) and A.dim() >= 2 and 0 < A.shape[-2] <= MOST_FEW_ROWS
    looks = options.get("on_infeasible") in ("raise", "nearest") and not plain(raw, A)  # refused, or outside the graph
    if not few or looks or options.get("metric") is not None or options.get("strict"):
        return polyhedron.project_affine(raw, A, lower, upper, **options)
    return _few(raw, A, lower, upper, **options)


def _few(
    raw: Tensor,
    A: Tensor,
    lower: Tensor | float | None,
    upper: Tensor | float | None,
    *,
    metric: None = None,
    gradient: str = "exact",
    strict: bool = False,
    on_infeasible: str = "auto",
    on_invalid: str = "raise",
) -> Tensor:
    """The fixed program; where a look is free, or asked for, the general solver speaks of samples it left open."""
    polyhedron.check_options(on_infeasible=on_infeasible, on_invalid=on_invalid, gradient=gradient)
    if well_formed(raw, A, lower, upper, None):  # pyright: ignore[reportArgumentType]
        found = dispatch(raw, A, lower, upper, gradient == "tangent")  # pyright: ignore[reportArgumentType]
        return _answer(found, raw, A, lower, upper, on_infeasible, on_invalid)
    batch, low, high = check_affine(raw, A, lower, upper)
    if 0 in batch or (low is None and high is None):
        return raw.expand(*batch, raw.shape[-1])
    flat: Any = flatten(batch, raw, A, low, high, None)[:4]
    found = nearest_few(*flat, gradient=gradient)  # pyright: ignore[reportArgumentType]
    y = found.y.reshape(*batch, raw.shape[-1])
    y = narrow(y, raw.dtype, on_invalid) if raw.dtype in HALF else y
    found = found._replace(y=y, status=found.status.reshape(batch))
    return _answer(found, raw, A, lower, upper, on_infeasible, on_invalid)


def _answer(
    found: Nearest, raw: Tensor, A: Tensor, lower: Any, upper: Any, on_infeasible: str, on_invalid: str
) -> Tensor:
    """Y, NaN where it is not solved; raw itself where its equalities hold to rounding already."""
    bad = (found.status != int(Status.SOLVED)).unsqueeze(-1)
    if not (may_look(raw) or on_infeasible in ("raise", "nearest")):
        return torch.where(bad, torch.nan, found.y)
    y = found.y
    if bool(bad.any()):
        policies: Any = {"on_infeasible": on_infeasible, "on_invalid": on_invalid}
        y = torch.where(bad, polyhedron.project_affine(raw, A, lower, upper, **policies), y)
    if lower is None or upper is None or not bool((torch.as_tensor(lower) == torch.as_tensor(upper)).any()):
        return y
    # the value of raw, with the derivative of y, which moves along the equalities
    return torch.where(_holds(raw.detach(), A, lower, upper).unsqueeze(-1), keep_value(y, raw), y)


def _holds(raw: Tensor, A: Tensor, lower: Any, upper: Any) -> Tensor:
    """Whether every row holds at raw to rounding of its terms ``|a||raw| + |bound|``: ``(*batch)``."""
    point, rows = raw.double(), A.detach().double()
    low, high = (torch.as_tensor(side, dtype=point.dtype, device=point.device) for side in (lower, upper))
    product = (rows @ point.unsqueeze(-1)).squeeze(-1)
    target = product.clamp(low, high)
    length = torch.linalg.vector_norm(rows, dim=-1) * torch.linalg.vector_norm(point, dim=-1, keepdim=True)
    rounding = 4 * torch.finfo(raw.dtype).eps
    return ((product - target).abs() <= rounding * (length + target.abs())).all(-1)
