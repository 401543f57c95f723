"""Progress display in training: a bar per method with percent and time left, and loss and violation if they fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hardnet.errors import MissingExtraError

if TYPE_CHECKING:
    from hardnet_lab.train.loop import Training


class Display(Protocol):
    """Shows runs in progress."""

    def begin(self, label: str, training: Training) -> None:
        """Show that a run starts or resumes."""
        ...

    def update(self, training: Training) -> None:
        """Show that an epoch of the run has ended."""
        ...

    def note(self, text: str) -> None:
        """Show one line of text."""
        ...


class Silence:
    """Shows nothing."""

    def begin(self, label: str, training: Training) -> None:
        """Do nothing."""

    def update(self, training: Training) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


class Bars:
    """One bar per run on the terminal, drawn by rich."""

    def __init__(self) -> None:
        try:
            from rich import progress
            from rich.console import Console
        except ImportError as error:
            raise MissingExtraError("rich") from error
        self.progress = progress.Progress(*_columns(progress, Console().width), refresh_per_second=4)
        self._bar: progress.TaskID | None = None

    def begin(self, label: str, training: Training) -> None:
        """Add a bar."""
        total = training.settings.epochs
        self._bar = self.progress.add_task(label, total=total, completed=training.epoch, loss="-", violation="-")

    def update(self, training: Training) -> None:
        """Advance the bar; the numbers are means over the seeds at the last evaluated epoch."""
        if self._bar is not None:
            loss, violation = _mean(training.history.loss), _mean(training.history.violation)
            self.progress.update(self._bar, completed=training.epoch, loss=loss, violation=violation)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(text, highlight=False, markup=False)


WIDE = 110
"""Terminal width, in columns, from which loss and violation are shown after the bar."""


def _columns(progress: Any, width: int) -> list[Any]:
    """Name, bar, percent and time left, which fit into 80 columns; loss and violation where there is room."""
    from rich.table import Column

    name = progress.TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=36))
    left = progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True))
    shown = [name, progress.BarColumn(bar_width=20), progress.TaskProgressColumn(), left]
    numbers = progress.TextColumn("loss {task.fields[loss]}  violation {task.fields[violation]}")
    return [*shown, numbers] if width >= WIDE else shown


@contextmanager
def bars() -> Iterator[Bars]:
    """Bars that are drawn while the context is open."""
    shown = Bars()
    with shown.progress:
        yield shown


def _mean(entries: list[list[float]]) -> str:
    return f"{sum(entries[-1]) / len(entries[-1]):.4g}" if entries else "-"
