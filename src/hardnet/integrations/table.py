"""Tables in Parquet: a model over row groups, in shards that resume after a kill, with the certificate of each row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from hardnet.certificate import Certificate, check
from hardnet.errors import FileError, HardNetError, InfeasibleError, MissingExtraError, SampleError, sentence
from hardnet.files import replacing, write_atomically
from hardnet.model import HardNet
from hardnet.modes import widen

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    pc: Any = import_module("pyarrow.compute")  # its functions are made when it is imported
except ImportError as error:
    raise MissingExtraError("pyarrow", "parquet") from error

RESULTS = ("y", "ok", "violation", "worst", "moved")
"""The columns that are written."""
DESCRIPTION, TOTALS = "_hardnet.json", b"hardnet"
"""What a folder of results belongs to (readers of Parquet skip names with ``_``), and a part's own count."""


class Totals(NamedTuple):
    """What a shard has counted: rows, rows that satisfy every row of their set, the largest violation."""

    rows: int = 0
    satisfied: int = 0
    violation: float = 0.0

    def plus(self, other: Totals) -> Totals:
        """Both together."""
        largest = max(self.violation, other.violation)
        return Totals(self.rows + other.rows, self.satisfied + other.satisfied, largest)


class Enforcer:
    """Rows of a table -> the same rows with ``y = model(x)`` and its certificate; a stateful actor of Ray Data.

    ``dataset.map_batches(Enforcer, fn_constructor_args=(make_model, ["speed", "angle"]), batch_format="pyarrow")``

    Columns of the result: ``y`` (a list of n numbers), ``ok`` (every row of the set holds, as `hn.check` judges it),
    ``violation`` (the largest, inf where it is not a number), ``worst`` (the row that exceeds its tolerance the most;
    null where all hold), ``moved`` (the distance from the network's output to y). A row of the table that has no
    answer (an empty set, a null in x) gets a y of NaN, ok = False, and the reason as ``worst``; the others are not
    concerned.

    Args:
        model: The model, or a function that makes it.
        x: The columns that x consists of, numbers or lists of numbers, side by side in this order; or a function of
            the `pyarrow.Table` that returns x as the network takes it, each tensor with one row for each of the table.
        keep: Columns that the result has too.
        device: Where to compute.
    """

    def __init__(
        self,
        model: HardNet | Callable[[], HardNet],
        x: str | Sequence[str] | Callable[[pa.Table], Any] = "x",
        keep: Sequence[str] = (),
        device: str = "cpu",
    ) -> None:
        self.model: HardNet = (model if isinstance(model, HardNet) else model()).eval().to(device)
        self.x = [x] if isinstance(x, str) else x
        self.keep = list(keep)
        taken = [name for name in self.keep if name in RESULTS]
        if taken:
            raise HardNetError(sentence("keep", f"columns other than {', '.join(RESULTS)}", taken[0]))
        self.like = next(self.model.parameters(), torch.zeros((), dtype=torch.float64, device=device))

    @property
    def reads(self) -> list[str] | None:
        """The columns that are needed; None if a function of the table decides."""
        return None if callable(self.x) else [*dict.fromkeys((*self.x, *self.keep))]

    @torch.no_grad()
    def __call__(self, table: pa.Table) -> pa.Table:
        """The certified rows of a table, in its order."""
        x = (
            self.x(table)
            if callable(self.x)
            else torch.from_numpy(np.hstack([_column(table, name) for name in self.x]))
        )
        x = tree_map_only(Tensor, self._placed, x)
        raw = self.model(x, enforce=False)
        missing: dict[int, str] = {}
        y = self._answers(raw, x, torch.arange(len(raw), device=raw.device), missing)
        found = check(self.model, y, x)
        worst = _worst(found) | missing
        moved = (y - widen(raw)).norm(dim=-1) if y.shape == raw.shape else torch.full_like(y[..., 0], torch.nan)
        columns = {name: _named(table, name) for name in self.keep} | {
            "y": pa.FixedSizeListArray.from_arrays(pa.array(_numbers(y).reshape(-1)), y.shape[-1]),
            "ok": pa.array(_numbers(found.satisfied)),
            "violation": pa.array(_numbers(found.violation.nan_to_num(nan=torch.inf).amax(-1))),
            "worst": pa.array([worst.get(row) for row in range(len(y))] if worst else [None] * len(y), pa.string()),
            "moved": pa.array(_numbers(moved)),
        }
        return pa.table(columns)

    def _placed(self, value: Tensor) -> Tensor:
        """A tensor where the model is, numbers in its dtype."""
        return value.to(self.like if value.is_floating_point() else self.like.device)

    def _answers(self, raw: Tensor, x: Any, rows: Tensor, missing: dict[int, str]) -> Tensor:
        """y of all rows; NaN for those that an error names, whose reason is noted, and the others without them."""
        try:
            return self.model.layer(raw, x)
        except SampleError as error:
            bad = [sample for sample in error.samples if isinstance(sample, int)]
            if not bad:
                raise
            names = error.names if isinstance(error, InfeasibleError) else []
            for place, sample in enumerate(bad):
                reason = f"no answer: {', '.join(names[place])}" if place < len(names) else f"no answer: {error}"
                missing[int(rows[sample])] = reason
        good = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
        good[bad] = False
        part = self._answers(raw[good], tree_map_only(Tensor, lambda value: value[good], x), rows[good], missing)
        y = part.new_full((len(raw), *part.shape[1:]), torch.nan)
        y[good] = part
        return y


def enforce_table(
    enforcer: Enforcer,
    source: Path,
    out: Path,
    shard: tuple[int, int] = (1, 1),
    *,
    belongs: str = "",
    batch: int = 16384,
    show: Callable[[str], object] = lambda line: None,
) -> Totals:
    """Enforce a model on a table of any length: one complete file in the folder `out` for each row group of `source`.

    A file appears when it is complete, so a run that was killed is called again and goes on: what is there is counted,
    not computed. `out` is read as one table (``pyarrow.parquet.read_table(out)``), in the order of `source`.

    Args:
        enforcer: What to do.
        source: A Parquet file, or a folder of them.
        out: The folder; one that belongs to another table, model or columns is refused.
        shard: ``(k, n)``, k from 1 to n: only row groups k, k + n, k + 2 n, ... All shards share one folder.
        belongs: What identifies the model, such as a digest of its file.
        batch: Rows at once.
        show: Receives a line for each row group.

    Returns:
        The counts of this shard's row groups, whenever they were computed.
    """
    k, n = shard
    if not 1 <= k <= n:
        raise HardNetError(sentence("shards", "k/n with k from 1 to n", f"{k}/{n}"))
    groups = list(_groups(source))
    _claim(out, {"table": _footers(source), "model": belongs, "x": str(enforcer.reads), "keep": enforcer.keep})
    total = Totals()
    for index in range(k - 1, len(groups), n):
        part = out / f"part-{index:06d}.parquet"
        file, group, rows = groups[index]
        counted = _counted(part, rows)
        if counted is None:
            counted = _write(enforcer, _batches(enforcer, file, group, batch), part)
            show(f"{part.name}: {counted.satisfied} of {counted.rows} rows satisfy every row")
        total = total.plus(counted)
    return total


def _write(enforcer: Enforcer, tables: Iterator[pa.Table], part: Path) -> Totals:
    """Write the results of one row group, batch by batch, and then its count."""
    total, writer = Totals(), None
    with replacing(part) as fresh:
        for table in tables:
            done = enforcer(table)
            writer = pq.ParquetWriter(fresh, done.schema) if writer is None else writer
            writer.write_table(done)
            largest = pc.max(done["violation"]).as_py() or 0.0
            total = total.plus(Totals(done.num_rows, pc.sum(done["ok"]).as_py() or 0, largest))
        assert writer is not None  # a row group has at least one batch, an empty one
        writer.add_key_value_metadata({TOTALS: json.dumps(total)})
        writer.close()
    return total


def _counted(part: Path, rows: int) -> Totals | None:
    """What a finished part has counted; None if there is no such part, or a damaged one."""
    try:
        metadata = pq.read_metadata(part)
        found = Totals(*json.loads(metadata.metadata[TOTALS]))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    return found if metadata.num_rows == rows == found.rows else None


def _files(source: Path) -> list[Path]:
    """The files of a table."""
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    return [file for file in files if not file.name.startswith((".", "_"))]


def _groups(source: Path) -> Iterator[tuple[Path, int, int]]:
    """File, place and rows of each row group; a table without any is refused."""
    empty = True
    for file in _files(source):
        try:
            metadata = pq.read_metadata(file)
        except pa.ArrowException as error:
            raise FileError(f"{file}: not readable as a Parquet table; {error}") from error
        for group in range(metadata.num_row_groups):
            empty = False
            yield file, group, metadata.row_group(group).num_rows
    if empty:
        raise FileError(f"{source}: holds no rows of a Parquet table")


def _batches(enforcer: Enforcer, file: Path, group: int, batch: int) -> Iterator[pa.Table]:
    """The rows of a row group; one empty table if it has none."""
    with pq.ParquetFile(file) as table:
        known, columns = table.schema_arrow, enforcer.reads
        for name in columns or ():
            if name not in known.names:
                raise FileError(sentence(str(file), f"a column {name!r}", ", ".join(known.names)))
        empty = True
        for records in table.iter_batches(batch, row_groups=[group], columns=columns):
            empty = False
            yield pa.Table.from_batches([records])
        if empty:
            yield (known if columns is None else pa.schema([known.field(name) for name in columns])).empty_table()


def _footers(source: Path) -> list[list[str]]:
    """Name and digest of the footer of each file: schema, places and statistics of its columns."""
    found = []
    for file in _files(source):
        with file.open("rb") as stream:
            stream.seek(-8, 2)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(-8 - length, 2)
            found.append([file.name, hashlib.blake2b(stream.read(length), digest_size=16).hexdigest()])
    return found


def _claim(out: Path, identity: dict[str, Any]) -> None:
    """Say whose folder this is; refuse one of something else."""
    described, content = out / DESCRIPTION, json.dumps(identity, indent=2).encode()
    if described.is_file():
        if described.read_bytes() != content:
            raise FileError(f"{out}: holds results of another table, model or columns; choose another folder")
        return
    if out.exists() and (not out.is_dir() or any(entry.name[0] not in "._" for entry in out.iterdir())):
        raise FileError(f"{out}: holds something else; choose a new folder")
    write_atomically(described, content)


def _named(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise HardNetError(sentence("columns", repr(name), ", ".join(table.column_names)))
    return table.column(name)


def _column(table: pa.Table, name: str) -> np.ndarray:
    """A column as ``(rows, width)`` float64; a null is NaN."""
    column = _named(table, name).combine_chunks()
    kind = column.type
    if not any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)):
        return _floats(column, name).reshape(-1, 1)
    widths = pc.unique(pc.drop_null(pc.list_value_length(column))).to_pylist()
    if len(widths) > 1:
        raise HardNetError(
            sentence(f"column {name!r}", "lists of one length", f"lengths {min(widths)} to {max(widths)}")
        )
    if not widths:  # no list at all: a fixed size is known all the same
        return np.full((len(column), max(getattr(kind, "list_size", 1), 1)), np.nan)
    wide = np.full((len(column), widths[0]), np.nan)
    wide[pc.is_valid(column).to_numpy(zero_copy_only=False)] = _floats(column.flatten(), name).reshape(-1, widths[0])
    return wide


def _floats(column: pa.Array, name: str) -> np.ndarray:
    try:
        return pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise HardNetError(sentence(f"column {name!r}", "numbers", str(column.type))) from error


def _numbers(value: Tensor) -> np.ndarray:
    return value.cpu().numpy()


def _worst(found: Certificate) -> dict[int, str]:
    """For each sample that breaks a row, the row that exceeds its tolerance the most."""
    if found.ok:
        return {}
    broken = ~found.satisfied
    beyond = (found.violation[broken] - found.tolerance[broken]).nan_to_num(nan=torch.inf)
    rows = broken.nonzero().squeeze(-1).tolist()
    return {row: found.names[worst] for row, worst in zip(rows, beyond.argmax(-1).tolist(), strict=True)}
