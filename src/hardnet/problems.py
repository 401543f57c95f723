"""`hn.problems`: the problems of the laboratory, imported when one is asked for."""

from typing import TYPE_CHECKING, Any

from hardnet.laboratory import laboratory

if TYPE_CHECKING:
    from hardnet_lab.problems import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A name of `hardnet_lab.problems`."""
    return getattr(laboratory("problems"), name)
