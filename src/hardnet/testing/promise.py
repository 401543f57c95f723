"""The error for a violated contract, and the function that raises it.

Called by `hardnet.testing.poison`.
"""

from __future__ import annotations


class ContractError(AssertionError):
    """A set or a layer violates its contract."""


def require(holds: bool, sentence: str) -> None:
    """Raise `ContractError` with this sentence unless it holds."""
    if not holds:
        raise ContractError(sentence)
