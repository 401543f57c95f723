"""Tables for notebooks: what `_repr_html_` returns for the results that people look at."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

MOST_ROWS = 50
"""The most rows that are shown."""


def as_html(rows: Iterable[Mapping[str, Any]], caption: str = "") -> str:
    """An HTML table of rows with the same keys, under a caption; everything is escaped."""
    rows = list(rows)
    shown = list(islice(rows, MOST_ROWS))
    cells = lambda values, tag: "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in values)
    head = f"<tr>{cells(shown[0], 'th')}</tr>" if shown else ""
    body = "".join(f"<tr>{cells(row.values(), 'td')}</tr>" for row in shown)
    more = f"<p>{len(rows) - MOST_ROWS} more rows</p>" if len(rows) > MOST_ROWS else ""
    return f"<p>{html.escape(caption)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>{more}"
