"""Layers: how a set is enforced. One paper, one file."""

from hardnet.layers.base import Guarantee, Layer

LAYERS: dict[str, type[Layer]] = {}
"""Every layer by the name that ``HardNet(net, constraint, method=name)`` takes."""

__all__ = ["LAYERS", "Guarantee", "Layer"]
