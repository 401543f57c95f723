"""Every exception and warning of hardnet, and the sentence pattern of their messages.

A message names the argument, what was expected, what was passed, and what would work instead. Everything that can be
wrong with a number of a set is in one table at the end of this file: defect -> error class -> wording.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``; did you mean 'strict'?`` where a known name resembles the one that was given, else nothing."""
    near = get_close_matches(given, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def sentence(argument: str, expected: str, got: object, remedy: str | None = None) -> str:
    """``argument: expected X, got Y; remedy``: the wording of all input errors."""
    text = f"{argument}: expected {expected}, got {got}"
    return f"{text}; {remedy}" if remedy else text


def name_samples(samples: Sequence[object], limit: int = 8) -> str:
    """Name the first few samples of a list, and count the rest."""
    shown = ", ".join(str(sample) for sample in samples[:limit])
    rest = len(samples) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def in_samples(samples: Sequence[object]) -> str:
    """`` in sample 3``, `` in samples 0, 3``, or an empty string if all samples share the number."""
    return f" in sample{'s' if len(samples) > 1 else ''} {name_samples(samples)}" if samples else ""


def sample_indices(bad: Tensor) -> list[object]:
    """The indices of the bad samples in a mask ``(*batch)``: ints for one batch dimension, otherwise tuples."""
    index = bad.nonzero().tolist()
    return [entry[0] if len(entry) == 1 else tuple(entry) for entry in index]


class HardNetError(Exception):
    """The base class of every error that hardnet raises on purpose."""


class SampleError(HardNetError):
    """An error in some samples of a batch.

    Attributes:
        samples: Index of each bad sample: an int for one batch dimension, a tuple of ints for several.
    """

    def __init__(self, message: str, samples: Sequence[object] = ()) -> None:
        """Store the message and the indices of the samples that it names."""
        super().__init__(message)
        self.samples: list[object] = list(samples)


class ShapeError(HardNetError, ValueError):
    """A tensor has the wrong shape."""


class DTypeError(HardNetError, TypeError):
    """A tensor has an integer or a mismatched dtype."""


class DeviceError(HardNetError, ValueError):
    """Tensors of one call are on different devices."""


class NonFiniteError(SampleError, ValueError):
    """A number that must be finite is NaN or infinite."""


class BoundsError(SampleError, ValueError):
    """A lower bound exceeds its upper bound, is NaN or +inf (an upper bound -inf), or a size is negative."""


class RankError(SampleError, ValueError):
    """The rows of A(x) are linearly dependent to rounding."""


class InfeasibleError(SampleError, ValueError):
    """C(x) is empty for some samples.

    Attributes:
        samples: Index of each infeasible sample.
        rows: For each of these samples, the rows that contradict each other.
        names: The names of these rows, if the set is known (see `ConstraintSet.row_names`).
    """

    def __init__(
        self,
        message: str,
        samples: Sequence[object] = (),
        rows: Sequence[Sequence[int]] = (),
        names: Sequence[Sequence[str]] = (),
    ) -> None:
        """Store the samples and, for each of them, its conflicting rows and their names."""
        super().__init__(message, samples)
        self.rows: list[list[int]] = [list(conflict) for conflict in rows]
        self.names: list[list[str]] = [list(conflict) for conflict in names]

    def named(self, names: Sequence[str]) -> InfeasibleError:
        """The same error with the names of its rows, given those of all rows of the set."""
        found = [[names[row] for row in conflict] for conflict in self.rows]
        text = f"{self} (rows: {name_samples(found[0])})" if found and found[0] else str(self)
        return InfeasibleError(text, self.samples, self.rows, found)


class ConvergenceError(SampleError, RuntimeError):
    """An iterative solver did not reach its tolerance on some samples.

    Attributes:
        samples: Index of each of these samples.
        solution: What the solver has for the whole batch, so that nothing of the other samples is lost; or None.
    """

    def __init__(self, message: str, samples: Sequence[object] = (), solution: Any = None) -> None:
        """Store the samples, and the solution of the whole batch."""
        super().__init__(message, samples)
        self.solution = solution


class OptionError(HardNetError, ValueError):
    """An option of a layer has an invalid value, or the layer has no such option."""


class UnsupportedSetError(HardNetError, ValueError):
    """A method was asked to enforce a set outside its class."""


class ConvexityError(SampleError, UnsupportedSetError):
    """The matrix of a quadratic has a negative eigenvalue, so the set is not convex."""


class FileError(HardNetError, ValueError):
    """A saved model, a checkpoint or a result file is corrupt, or belongs to something else."""


class StateError(FileError, RuntimeError):
    """A state dict has other constants, another method or other options; a RuntimeError, like torch's own errors."""


class MissingExtraError(HardNetError, ImportError):
    """A required optional dependency is not installed."""

    def __init__(self, package: str, extra: str | None = None) -> None:
        """Name the package, and the extra that installs it; without one, the package itself is to be installed."""
        wanted = package if extra is None else f"'hardnet[{extra}]'"
        super().__init__(f"this needs the package '{package}'; install it with: pip install {wanted}")


class NotConvergedWarning(UserWarning):
    """An iterative solver stopped before its tolerance; the residual is in the Solution."""


class ConditionWarning(UserWarning):
    """A matrix is so badly conditioned that outputs may move by up to cond(A) times the violation."""


class FileWarning(UserWarning):
    """A file lacks information that this version needs for all its checks."""


@dataclass(frozen=True)
class Defect:
    """One thing that can be wrong with a number of a set.

    Attributes:
        error: The class to raise.
        expected: What the number should have been.
        got: What was passed, for messages that cannot show the number itself.
        remedy: What would work instead.
    """

    error: type[HardNetError]
    expected: str
    got: str
    remedy: str | None = None

    def of(self, name: str, got: str | None = None, samples: Sequence[object] = ()) -> HardNetError:
        """The error for the argument `name`, with the samples concerned (none if all samples share the number)."""
        text = sentence(name, self.expected, f"{got or self.got}{in_samples(samples)}", self.remedy)
        return self.error(text, samples) if issubclass(self.error, SampleError) else self.error(text)


NOT_A_NUMBER = Defect(NonFiniteError, "numbers", "NaN")
NOT_FINITE = Defect(NonFiniteError, "finite numbers", "NaN or infinity")
NO_LOWER_BOUND = Defect(
    BoundsError,
    "numbers other than NaN and +inf",
    "NaN or +inf",
    "leave the bound out or give -inf where there is none",
)
NO_UPPER_BOUND = Defect(
    BoundsError,
    "numbers other than NaN and -inf",
    "NaN or -inf",
    "leave the bound out or give +inf where there is none",
)
CROSSED = Defect(BoundsError, "lower <= upper in every row", "lower > upper", "swap or relax them")
NEGATIVE = Defect(
    BoundsError, "a finite number >= 0", "a negative or non-finite one", "a negative one leaves no point at all"
)
NOT_POSITIVE = Defect(BoundsError, "finite numbers > 0", "zero, a negative or a non-finite one")
ZERO_ROW = Defect(RankError, "rows other than zero", "rows of zeros", "drop these rows")
DEPENDENT = Defect(
    RankError,
    "linearly independent rows",
    "rows that are dependent to rounding",
    "drop redundant rows or use the exact projection (method='projection')",
)
ASYMMETRIC = Defect(UnsupportedSetError, "a symmetric matrix", "another one", "pass half the sum with its transpose")
INDEFINITE = Defect(
    ConvexityError, "a positive semidefinite matrix", "a negative eigenvalue", "otherwise the set is not convex"
)
EMPTY = Defect(InfeasibleError, "numbers of a set that holds some point", "an empty set")
