"""Every layer by the name that ``HardNet(net, constraint, method=name)`` takes."""

from __future__ import annotations

from hardnet.layers.base import Layer
from hardnet.layers.hardnet_aff import HardNetAff

LAYERS: dict[str, type[Layer]] = {layer.name: layer for layer in (HardNetAff,)}
