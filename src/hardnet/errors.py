"""Every exception and warning of hardnet, and the one sentence that each message is built from.

A message names the argument, what was expected, what came, and what would work instead.
"""

from __future__ import annotations

from collections.abc import Sequence


def sentence(argument: str, expected: str, got: object, remedy: str | None = None) -> str:
    """``argument: expected X, got Y; remedy``: the wording that all input errors share."""
    text = f"{argument}: expected {expected}, got {got}"
    return f"{text}; {remedy}" if remedy else text


def name_samples(samples: Sequence[object], limit: int = 8) -> str:
    """Name the first few samples of a list, and count the rest."""
    shown = ", ".join(str(sample) for sample in samples[:limit])
    rest = len(samples) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


class HardNetError(Exception):
    """The root of every error that hardnet raises on purpose."""


class SampleError(HardNetError):
    """An error of some samples of a batch.

    Attributes:
        samples: Index of each bad sample: an int for one batch dimension, a tuple of ints for several.
    """

    def __init__(self, message: str, samples: Sequence[object] = ()) -> None:
        """Keep the message and the indices of the samples it speaks of."""
        super().__init__(message)
        self.samples = list(samples)


class ShapeError(HardNetError, ValueError):
    """A tensor has the wrong shape."""


class DTypeError(HardNetError, TypeError):
    """A tensor has an integer or a mismatched dtype."""


class DeviceError(HardNetError, ValueError):
    """Tensors of one call are on different devices."""


class NonFiniteError(SampleError, ValueError):
    """A number that must be finite is NaN or infinite."""


class BoundsError(SampleError, ValueError):
    """A lower bound exceeds its upper bound, or is +inf (an upper bound is -inf)."""


class RankError(SampleError, ValueError):
    """The rows of A(x) are linearly dependent to rounding."""


class InfeasibleError(SampleError, ValueError):
    """C(x) is empty for some samples.

    Attributes:
        samples: Index of each infeasible sample.
        rows: For each of these samples, the rows that contradict each other.
    """

    def __init__(self, message: str, samples: Sequence[object] = (), rows: Sequence[Sequence[int]] = ()) -> None:
        """Keep the samples and, for each of them, its conflicting rows."""
        super().__init__(message, samples)
        self.rows = [list(conflict) for conflict in rows]


class ConvergenceError(SampleError, RuntimeError):
    """An iterative solver did not reach its tolerance on some samples."""


class OptionError(HardNetError, ValueError):
    """An option of a layer has a value that it does not take, or the layer has no such option."""


class UnsupportedSetError(HardNetError, ValueError):
    """A method was asked to enforce a set outside its class."""


class FileError(HardNetError, ValueError):
    """A saved model, a checkpoint or a result file is corrupt, or belongs to something else."""


class StateError(FileError, RuntimeError):
    """A state dict has other constants, another method or other options; a RuntimeError, as torch's own are."""


class MissingExtraError(HardNetError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the package and the extra that brings it."""
        super().__init__(f"this needs the package '{package}'; install it with: pip install 'hardnet[{extra}]'")


class NotConvergedWarning(UserWarning):
    """An iterative solver stopped before its tolerance; the residual is in the Solution."""


class ConditionWarning(UserWarning):
    """A matrix is so badly conditioned that outputs may move by up to cond(A) times the violation."""


class FileWarning(UserWarning):
    """A file does not say everything that this version asks of one."""
