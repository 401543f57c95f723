"""Corrupt each number of a set in turn: the result must be an error, NaN for that sample alone, or a correct y."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from hardnet.certificate import check
from hardnet.errors import HardNetError, NotConvergedWarning, SampleError
from hardnet.layers.base import Guarantee, Layer
from hardnet.sets.base import ConstraintSet

# The error for a violated contract, and the function that raises it.


class ContractError(AssertionError):
    """A set or a layer violates its contract."""


def require(holds: bool, sentence: str) -> None:
    """Raise `ContractError` with this sentence unless it holds."""
    if not holds:
        raise ContractError(sentence)


POISONS = (torch.nan, torch.inf, -torch.inf, 1e6, -1e6)
"""The last two simulate swapped bounds, a negative radius, or a row that no y satisfies."""
REMEDY = "raise an error for such a sample, or return NaN: torch.where(sound.unsqueeze(-1), y, torch.nan)"


def check_poisoned_numbers(layer: Layer, x: Any, raw: Tensor) -> None:
    """Check that a bad number of C(x) gives an error or NaN for its sample alone, and does not change other samples.

    Each number in turn becomes a function of x with one bad entry for sample 0. (Numbers for which the layer takes only
    constants are skipped: a set refuses bad constants when it is built.) A poison may be harmless, such as an upper
    bound of inf: then y must be in C(x) according to the certificate.
    """
    x = raw if x is None else x
    for index, name in list(_numbers(layer.constraint)):
        clean = _rebuilt(layer, index, name, raw, None)
        if clean is None or clean.raw_dim != layer.raw_dim:
            continue
        with torch.no_grad():
            y = clean(raw, x)
            for poison in POISONS:
                spoilt = _rebuilt(layer, index, name, raw, poison)
                if spoilt is not None:
                    owner = type(list(layer.constraint.modules())[index]).__name__
                    _judge(spoilt, x, raw, y, f"{owner}.{name} = {poison} in sample 0")


def _numbers(constraint: ConstraintSet) -> Iterator[tuple[int, str]]:
    """Each number of the set that is not a parameter: the index of its owner among the modules, and its name."""
    for index, part in enumerate(constraint.modules()):
        if isinstance(part, ConstraintSet):
            yield from ((index, name) for name in part._cores if name in functions_of(part) or name in part._constants)


def functions_of(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The functions of x that a set keeps, by the name of the argument."""
    return getattr(module, "_functions", {})


def _rebuilt(layer: Layer, index: int, name: str, raw: Tensor, poison: float | None) -> Layer | None:
    """The layer rebuilt on a set whose number depends on x and is bad in sample 0; None where it cannot be built.

    It returns NaN for bad samples where it has that option, so that the other samples can be compared.
    """
    options = asdict(layer.options)
    options |= {policy: "nan" for policy in ("on_invalid", "on_infeasible", "on_unsolved") if policy in options}
    constraint = copy.deepcopy(layer.constraint)
    part: Any = list(constraint.modules())[index]
    function = functions_of(part).get(name) or _as_function(part, name, layer.constraint.dim or raw.shape[-1])
    if function is None:
        return None

    def spoilt(x: Any) -> Tensor:
        value = function(x)
        value = value.expand(len(raw), *value.shape[1:]).clone()
        if poison is not None:
            value.reshape(len(raw), -1)[0, 0] = poison
        return value

    part._functions[name] = spoilt
    try:
        return type(layer)(constraint, **options)
    except (HardNetError, TypeError):
        return None


def _as_function(part: Any, name: str, n: int) -> Callable[[Any], Tensor] | None:
    """Turn a constant into a function of x that returns it with a batch of 1; None where its shape is not known."""
    value, core = part._buffers.pop(name), part._cores[name]
    part._constants.remove(name)
    part._written.pop(name, None)
    sizes = [n if letter == "n" else part._sizes.get(letter, letter) for letter in core]
    if value.dim() < len(core) and all(isinstance(size, int) for size in sizes):
        value = value.expand(sizes)
    return (lambda x: value.unsqueeze(0)) if value.dim() == len(core) else None


def _judge(layer: Layer, x: Any, raw: Tensor, y: Tensor, what: str) -> None:
    """Require an error or warning of the library that names no other sample, NaN, or a point of the corrupted set."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = layer(raw, x)
    except HardNetError as error:
        named = error.samples if isinstance(error, SampleError) else []
        require(not named or named == [0], f"{what} is blamed on samples {named}")
        return
    require(torch.equal(result[1:], y[1:]), f"{what} changed the results of its batch mates")
    unsolved = any(issubclass(warning.category, NotConvergedWarning) for warning in said)
    if not unsolved and not bool(result[0].isnan().any()):
        certificate = check(layer.constraint, result, x, tolerance=_tolerance(layer))
        require(bool(certificate.satisfied[0]), f"{what} came back as finite numbers outside of C(x); {REMEDY}")


def _tolerance(layer: Layer) -> float | None:
    """The tolerance of the certificate for a layer; infinite where it has no guarantee."""
    return {Guarantee.EXACT: None, Guarantee.TOLERANCE: 1e-6}.get(layer.guarantee, torch.inf)
