"""A broken promise, and the one way to raise it.

Called by `hardnet.testing.poison`.
"""

from __future__ import annotations


class ContractError(AssertionError):
    """A set or a layer breaks a promise of the contract."""


def require(holds: bool, sentence: str) -> None:
    """Raise the broken promise."""
    if not holds:
        raise ContractError(sentence)
