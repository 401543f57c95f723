"""Affine rows whose matrix A is constant, and layers that prepare tables from them once, in float64."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hardnet.errors import NOT_FINITE, HardNetError, RankError, ShapeError, in_samples, sentence
from hardnet.errors import sample_indices as indices_of
from hardnet.functional.dc3 import Completion, Partition, choose_partition, partition_of, singular
from hardnet.functional.samples import find_invalid, reject
from hardnet.layers.base import Layer, not_affine
from hardnet.modes import may_look, working
from hardnet.sets.base import AffineRows, ConstraintSet
from hardnet.structure import BoxedRows

# How a layer in plain torch handles invalid samples: NaN for these alone, then an error where reading is free.


__all__ = [
    "crossed",
    "diagnose_inputs",
    "diagnose_missed",
    "in_samples",
    "poison",
    "raise_for_invalid",
    "require_width",
    "sample_indices",
    "take_raw",
]


def require_width(raw: Tensor, layer: Layer) -> None:
    """Refuse raw outputs of another width than the layer needs, where that is known."""
    if layer.raw_dim is not None and raw.shape[-1:] != (layer.raw_dim,):
        remedy = f"method '{layer.name}' needs {layer.raw_dim} network outputs for this set"
        raise ShapeError(sentence("raw", f"shape (*batch, {layer.raw_dim})", tuple(raw.shape), remedy))


def take_raw(raw: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Raw with zeros in the samples that are not finite, so that these send no gradient, and which they are.

    They are refused where values may be read, unless ``on_invalid="nan"``, and so is another width than ``raw_dim``.
    """
    require_width(raw, layer)
    bad = ~raw.isfinite().all(dim=-1)
    if layer.options.on_invalid == "raise" and may_look(raw):
        reject(bad, NOT_FINITE, "raw")
    return torch.where(bad.unsqueeze(-1), 0.0, raw), bad


def poison(y: Tensor, bad: Tensor | None = None) -> Tensor:
    """NaN in every coordinate of the samples that are `bad` ``(*batch)`` or not finite; others keep their bits."""
    sound = y.isfinite().all(dim=-1)
    if bad is not None:
        sound = sound & ~bad
    return torch.where(sound.unsqueeze(-1), y, torch.nan)


def crossed(rows: AffineRows) -> Tensor | None:
    """Whether some lower bound exceeds its upper bound, ``(*batch)``; None where a side has no bounds."""
    if rows.lower is None or rows.upper is None:
        return None
    return (rows.lower > rows.upper).any(dim=-1)


def raise_for_invalid(y: Tensor, diagnose: Callable[[], HardNetError | None]) -> None:
    """Raise what `diagnose` finds if y holds NaN, where reading values is free: eager mode on a CPU, outside vmap."""
    if may_look(y) and bool(y.isnan().any()):
        error = diagnose()
        if error is not None:
            raise error


def diagnose_inputs(raw: Tensor, rows: AffineRows) -> HardNetError | None:
    """The error for a bad number in raw, A or the bounds, naming the samples; None where all are valid."""
    finding = next(find_invalid(raw, *rows), None)
    return None if finding is None else finding.error()


def diagnose_missed(missed: Tensor, matrix: str, instead: str) -> RankError | None:
    """The error for samples whose rows do not hold to rounding because the matrix is too ill-conditioned."""
    samples = sample_indices(missed)
    if samples is None:
        return None
    text = f"{matrix}: expected rows that are independent enough to be met to rounding, got rows that y misses"
    return RankError(f"{text}{in_samples(samples)}; drop nearly dependent rows, or use {instead}", samples)


def sample_indices(bad: Tensor) -> list[object] | None:
    """The indices of the bad samples; empty where a value shared by all samples is bad, None where none is."""
    if not bool(bad.any()):
        return None
    return indices_of(bad) if bad.dim() else []


# Which rows of a set are equalities, and which outputs they determine; shared by the layers that solve them.


def not_filled(constraint: ConstraintSet) -> str | None:
    """Why a method that chooses outputs by the numbers of a set cannot be built while these are on the meta device."""
    if any(number.is_meta for number in constraint.buffers()):
        return "its numbers are on the meta device, and this method chooses outputs by them; build it on the CPU"
    return None


def known_equalities(constraint: ConstraintSet) -> list[int] | None:
    """The equality rows among the stacked rows; None where the number of rows is only known at x.

    Every row of an `Equality` counts, the sum of a `Simplex`, and every row of a constant set whose bounds are equal.
    Bounds that are functions of x and happen to be equal do not: that would have to be checked for each sample.
    """
    like = constraint.origin()
    found = [None if like is None else part.known(like, learned=True) for part in constraint.parts]
    if any(rows is None for rows in found):
        return None
    return _equal([(part, rows) for part, rows in zip(constraint.parts, found, strict=True) if rows is not None])


def equalities_at(constraint: ConstraintSet, x: Any, like: Tensor) -> list[int]:
    """The equality rows among the stacked rows, with the number of rows taken from the set evaluated at x."""
    pairs = constraint.pairs(constraint.numbers(x, like))
    return _equal([(part, part.structure(own, like).stacked()) for part, own in pairs])


def _equal(parts: list[tuple[ConstraintSet, BoxedRows]]) -> list[int]:
    """The rows that are equalities by their class, or in a constant set by their bounds."""
    index: list[int] = []
    start = 0
    for part, rows in parts:
        own = [row for row, declared in enumerate(rows.equality or ()) if declared]
        if not own and part.constant and rows.lower is not None and rows.upper is not None:
            own = torch.nonzero(rows.lower == rows.upper).flatten().tolist()
        index += [start + row for row in own]
        start += rows.A.shape[-2]
    return index


def known_matrix(constraint: ConstraintSet) -> Tensor | None:
    """The stacked A where it is a single matrix at construction, constant or learned; else None."""
    like = constraint.origin()
    rows = None if like is None else constraint.known(like, learned=True)
    return None if rows is None else rows.A


def only_equalities(constraint: ConstraintSet) -> bool:
    """Whether every row of a polyhedral set is known to be an equality at construction."""
    index, A = known_equalities(constraint), known_matrix(constraint)
    if index is None or A is None:
        return all(part.all_equal for part in constraint.parts)
    return len(index) == len(A)


def choose_columns(
    constraint: ConstraintSet, n: int | None, equalities: list[int] | None, predicted: Sequence[int] | None
) -> Partition:
    """The given predicted outputs and their complement, or the partition that pivoting finds where A is known."""
    A = known_matrix(constraint)
    if predicted is not None and n is not None:
        if len(set(predicted)) < len(predicted) or not all(0 <= column < n for column in predicted):
            raise ShapeError(sentence("predicted", f"distinct coordinates in 0..{n - 1}", list(predicted)))
        return partition_of(list(predicted), n, torch.device("cpu") if A is None else A.device)
    if A is None or equalities is None or n is None:
        remedy = "pass predicted=[...], and dim=n where A is a function of x"
        raise ShapeError(sentence("predicted", "the coordinates that the network predicts", predicted, remedy))
    return choose_partition(A[equalities])


def diagnose_singular(completion: Completion, partition: Partition) -> RankError | None:
    """The error for samples whose solved columns are singular, with the columns that pivoting would choose instead."""
    bad = singular(completion)
    samples = sample_indices(bad)
    if samples is None:
        return None
    first = tuple(bad.nonzero()[0].tolist())
    columns = torch.cat([completion.A_predicted, completion.A_completed], dim=-1)[first]
    names = torch.cat([partition.predicted, partition.completed])
    try:
        better = f"solve for {sorted(names[choose_partition(columns).completed].tolist())} instead"
    except RankError:
        better = "its rows are linearly dependent; use method='projection'"
    worst = completion.condition.nan_to_num(torch.inf).max().item()
    columns_text = f"the columns {partition.completed.tolist()} of the equalities, which are solved for, are singular"
    detail = f"{in_samples(samples)} (condition {worst:.1e}); {better}"
    return RankError(f"predicted: {columns_text}{detail}", samples)


class ConstantRows(NamedTuple):
    """What is known of ``lower(x) <= A y <= upper(x)`` at construction, on the CPU in float64.

    Attributes:
        A: ``(m, n)``.
        lower: ``(m,)``; -inf where absent, NaN where it depends on x.
        upper: ``(m,)``; inf where absent, NaN where it depends on x.
        equality: ``(m,)`` bool: the rows whose two bounds are known to be equal.
    """

    A: Tensor
    lower: Tensor
    upper: Tensor
    equality: Tensor


def constant_rows(constraint: ConstraintSet) -> ConstantRows | None:
    """The rows of a polyhedral set whose A is constant; None for any other set."""
    like = constraint.origin() if constraint.polyhedral else None
    A = None if like is None else constraint.fixed_matrix(like)
    if like is None or A is None or any(number.is_meta for number in constraint.buffers()):
        return None
    lower, upper = (_double(bound) for bound in constraint.fixed_bounds(like) or ())
    equality = torch.zeros(len(A), dtype=torch.bool)
    equality[known_equalities(constraint) or []] = True
    return ConstantRows(_double(A), lower, upper, equality)


def refuse_other_sets(constraint: ConstraintSet) -> str | None:
    """Why a set has no `constant_rows`, and what to use instead; None where it has them."""
    instead = "use method='projection'"
    if not constraint.polyhedral:
        return not_affine(constraint)
    if constraint.origin() is None:
        return f"nothing in it tells the number of outputs when it is built; {instead}"
    if any(number.is_meta for number in constraint.buffers()):
        return f"its numbers are on the meta device, and this method prepares tables from them; {instead}"
    if constant_rows(constraint) is None:
        return f"A depends on x or is learned, and this method prepares a constant A once; {instead}"
    return None


class TableLayer(Layer):
    """A layer that prepares tables from its constant rows once.

    The tables are kept in float64 and rounded to the dtype of the set (float32 for half types): rounding A first could
    make dependent rows independent and change the tables' shapes. They are rebuilt only when the numbers of the set
    change.
    """

    keeps_double: ClassVar[bool] = False
    """Whether the tables stay in float64 for any dtype of the set, for a layer that computes in float64."""

    _source: ConstantRows | None = None
    _exact: dict[str, Tensor]

    @abstractmethod
    def prepare_tables(self, rows: ConstantRows) -> dict[str, Tensor]:
        """Do the offline work: tables by name on the CPU, float64 or integer; each becomes a buffer of that name."""

    def refactor(self) -> None:
        """Prepare the tables if the rows have changed, and convert them to the dtype and device of the set."""
        rows, like = constant_rows(self.constraint), self.constraint.origin()
        if rows is None or like is None:
            return
        if self._source is None or not _equal_when_rounded(self._source, rows, like.dtype):
            self._source, self._exact = rows, self.prepare_tables(rows)
        for name, table in self._exact.items():
            dtype = working(like.dtype) if table.is_floating_point() and not self.keeps_double else table.dtype
            self.register_buffer(name, table.to(device=like.device, dtype=dtype), persistent=False)


def _double(tensor: Tensor) -> Tensor:
    """A copy on the CPU in float64."""
    return tensor.detach().to(device="cpu", dtype=torch.float64, copy=True)


def _equal_when_rounded(kept: ConstantRows, now: ConstantRows, dtype: torch.dtype) -> bool:
    """Whether `kept` and `now` agree after rounding to a dtype."""
    return all(
        old.shape == new.shape and torch.equal(old.to(dtype).nan_to_num(7.0), new.to(dtype).nan_to_num(7.0))
        for old, new in zip(kept, now, strict=True)
    )


class CompletionLayer(Layer):
    """A layer whose network predicts some outputs, while equalities determine the `completed` ones."""

    identity_inside = False  # raw has only the predicted outputs
    predicted: Tensor
    completed: Tensor

    def choose(self, partition: Partition) -> None:
        """Keep the choice of outputs in the state dict: trained weights rely on it."""
        self.register_buffer("predicted", partition.predicted)
        self.register_buffer("completed", partition.completed.long())

    @property
    def raw_dim(self) -> int | None:
        """The number of predicted outputs: n minus the number of equalities."""
        return self.predicted.numel()

    @property
    def columns(self) -> Partition:
        """Which outputs are predicted and completed."""
        return Partition(self.predicted, self.completed)
