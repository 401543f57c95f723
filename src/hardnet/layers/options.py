"""The options of a layer as one frozen dataclass, shared by its constructor, repr, `explain` and `hn.save`.

A layer declares them as a nested frozen dataclass ``Options``. Each field is one of the kinds below, so that this
module refuses all bad values when the layer is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature, signature
from typing import Any

from hardnet.errors import OptionError, did_you_mean, sentence


@dataclass(frozen=True)
class LayerOptions:
    """The options of a layer that has none; ``dataclasses.asdict`` of any options is JSON data."""

    def __post_init__(self) -> None:
        """Refuse a value that does not fit its kind, and convert lists to tuples."""
        for option in fields(self):
            object.__setattr__(self, option.name, _checked(option.name, option.metadata, getattr(self, option.name)))

    @classmethod
    def renamed(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The options of a file, of any version, by the names of today."""
        return saved

    def __str__(self) -> str:
        """``name=value, ...``, as written in a call of the constructor."""
        return ", ".join(f"{own.name}={_spoken(getattr(self, own.name))}" for own in fields(self))


LONGEST_SHOWN = 8
"""The most numbers for which an option is written out."""


def _spoken(value: Any) -> str:
    """A short text for a value: many numbers by their shape, code by its type."""
    if isinstance(value, tuple) and (len(value) > LONGEST_SHOWN or any(isinstance(row, tuple) for row in value)):
        inner = f", {len(value[0])}" if isinstance(value[0], tuple) else ","
        return f"({len(value)}{inner})"
    if callable(value):
        return "function of x" if not hasattr(value, "parameters") else f"{type(value).__name__} of x"
    return repr(value)


def option(default: Any, expected: str, holds: Callable[[Any], bool], clean: Callable[[Any], Any] | None = None) -> Any:
    """A field of a dataclass of options.

    Args:
        default: Its value where the caller gives none.
        expected: The allowed values, in words for the error.
        holds: Whether a value is allowed.
        clean: Converts a value to the plain data that is kept.
    """
    return field(default=default, metadata={"expected": expected, "holds": holds, "clean": clean})


def choice(*values: str) -> Any:
    """One of several words; the first is the default."""
    return option(values[0], " or ".join(map(repr, values)), lambda value: value in values)


def flag(default: bool) -> Any:
    """True or False."""
    return option(default, "True or False", lambda value: isinstance(value, bool))


def count(default: int | None, least: int = 0) -> Any:
    """A whole number of at least `least`; None is allowed where it is the default."""
    return option(
        default,
        f"a whole number of at least {least}",
        lambda value: value is default is None or (_whole(value) and value >= least),
    )


def number(default: float | None, above: float = -math.inf) -> Any:
    """A finite number above a limit; None is allowed where it is the default."""
    return option(
        default,
        "a finite number" if above == -math.inf else f"a finite number above {above:g}",
        lambda value: value is default is None or (_number(value) and above < value < math.inf),
    )


def indices(default: None = None) -> Any:
    """Whole numbers from 0, such as indices of outputs; None where the layer chooses."""
    return option(
        default,
        "whole numbers of at least 0",
        lambda value: value is None or (_listed(value) and all(_whole(i) and i >= 0 for i in value)),
        lambda value: None if value is None else tuple(int(i) for i in value),
    )


def vector(default: None = None) -> Any:
    """Finite numbers, as a tensor or a list; None where the layer computes them."""
    return option(
        default,
        "a list or tensor of finite numbers",
        lambda value: value is None or all(_number(entry) and math.isfinite(entry) for entry in _entries(value)),
        lambda value: None if value is None else tuple(float(entry) for entry in _entries(value)),
    )


def metric() -> Any:
    """None, n positive numbers, n rows of n numbers, a function or module of x for one of these, or "entropy"."""
    return option(
        None,
        "positive numbers (n), a matrix (n, n), 'entropy', or a function or module of x",
        lambda value: value in (None, "entropy") if isinstance(value, str) or value is None else _measures(value),
        lambda value: value if value is None or isinstance(value, str) or callable(value) else _nested(value),
    )


def signature_with(init: Callable[..., Any], record: type[LayerOptions]) -> Signature:
    """The signature of a layer's constructor, with its options in place of ``**options``."""
    given = list(signature(init).parameters.values())[1:]
    if not given or given[-1].kind is not Parameter.VAR_KEYWORD:
        return Signature(given)
    named = {own.name for own in given}
    options = [
        Parameter(own.name, Parameter.KEYWORD_ONLY, default=own.default, annotation=own.type)
        for own in fields(record)
        if own.name not in named
    ]
    return Signature([*given[:-1], *options])


def _measures(value: Any) -> bool:
    """Whether this is a function, n finite numbers, or n rows of n finite numbers."""
    return callable(value) or _rectangular(value)


def take_options(method: str, record: type[LayerOptions], given: dict[str, Any]) -> LayerOptions:
    """The dataclass with the given values; an unknown option is refused by name, listing the known ones."""
    names = [own.name for own in fields(record)]
    for name in given:
        if name not in names:
            expected = f"an option of method '{method}' ({', '.join(names) or 'it has none'})"
            raise OptionError(sentence("options", expected, repr(name)) + did_you_mean(name, names))
    return record(**given)


def _checked(name: str, kind: Any, value: Any) -> Any:
    """The value as the dataclass keeps it; a field without a kind accepts anything."""
    holds, clean = kind.get("holds"), kind.get("clean")
    if holds is not None and not holds(value):
        shape = getattr(value, "shape", None)  # the error names an array by its shape rather than its entries
        got = repr(value) if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
        raise OptionError(sentence(name, kind["expected"], got))
    return value if clean is None else clean(value)


def _whole(value: Any) -> bool:
    """Whether this is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    """Whether this is a number; True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _listed(value: Any) -> bool:
    """Whether this is a list or a tuple."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _rectangular(value: Any) -> bool:
    """Whether these are n finite numbers, or n rows of n finite numbers."""
    rows = _entries(value)
    if not all(_listed(row) for row in rows):
        rows = [rows]
    numbers = all(_number(entry) and math.isfinite(entry) for row in rows for entry in row)
    return len(rows) > 0 and numbers and len({len(row) for row in rows}) == 1 and len(rows) in (1, len(rows[0]))


def _nested(value: Any) -> tuple[Any, ...]:
    """The same numbers as (nested) tuples of floats."""
    return tuple(_nested(entry) if _listed(entry) else float(entry) for entry in _entries(value))


def _entries(value: Any) -> Sequence[Any]:
    """The entries of a list, a tuple or a tensor ``(n,)``; anything else gives one invalid entry."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if _listed(value) else (None,)
