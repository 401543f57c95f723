"""What a person sees while training: a bar per method with the running loss and violation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hardnet.errors import MissingExtraError

if TYPE_CHECKING:
    from hardnet.train.loop import Training


class Display(Protocol):
    """Shows runs in progress."""

    def begin(self, label: str, training: Training) -> None:
        """A run starts, or goes on."""
        ...

    def update(self, training: Training) -> None:
        """An epoch of the run has ended."""
        ...

    def note(self, text: str) -> None:
        """Say one line."""
        ...


class Silence:
    """Shows nothing."""

    def begin(self, label: str, training: Training) -> None:
        """Nothing."""

    def update(self, training: Training) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Bars:
    """One bar per run on the terminal, by rich."""

    def __init__(self) -> None:
        try:
            from rich import progress
        except ImportError as error:
            raise MissingExtraError("rich", "experiments") from error
        numbers = progress.TextColumn("loss {task.fields[loss]}  violation {task.fields[violation]}")
        left, bar = progress.TextColumn("{task.description}"), progress.BarColumn()
        columns = (left, bar, progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), numbers)
        self.progress = progress.Progress(*columns, refresh_per_second=4)
        self._bar: progress.TaskID | None = None

    def begin(self, label: str, training: Training) -> None:
        """Add a bar."""
        total = training.settings.epochs
        self._bar = self.progress.add_task(label, total=total, completed=training.epoch, loss="-", violation="-")

    def update(self, training: Training) -> None:
        """Move the bar; the numbers are means over the seeds at the last judged epoch."""
        if self._bar is not None:
            loss, violation = _mean(training.history.loss), _mean(training.history.violation)
            self.progress.update(self._bar, completed=training.epoch, loss=loss, violation=violation)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(text, highlight=False, markup=False)


@contextmanager
def bars() -> Iterator[Bars]:
    """Bars that are drawn as long as the context lasts."""
    shown = Bars()
    with shown.progress:
        yield shown


def _mean(entries: list[list[float]]) -> str:
    return f"{sum(entries[-1]) / len(entries[-1]):.4g}" if entries else "-"
