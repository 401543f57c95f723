"""The error for a violated contract, and the function that raises it."""

from __future__ import annotations


class ContractError(AssertionError):
    """A set or a layer violates its contract."""


def require(holds: bool, sentence: str) -> None:
    """Raise `ContractError` with this sentence unless it holds."""
    if not holds:
        raise ContractError(sentence)
