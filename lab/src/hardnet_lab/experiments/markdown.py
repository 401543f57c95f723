"""Markdown tables; all tables are written with this function."""

from __future__ import annotations

from collections.abc import Sequence


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with aligned columns; floats to three significant digits."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headers), *cells]) for i in range(len(headers))]
    lines = [list(headers), ["-" * width for width in widths], *cells]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


def _cell(value: object) -> str:
    """One cell: floats to three significant digits, None as a dash."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
