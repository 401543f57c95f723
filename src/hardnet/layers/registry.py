"""Every layer by the name that ``HardNet(net, constraint, method=name)`` takes."""

from __future__ import annotations

from hardnet.layers.acnet import ACnet
from hardnet.layers.base import Layer
from hardnet.layers.cdgm import CDGM
from hardnet.layers.cone import Cone
from hardnet.layers.dc3 import DC3
from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.layers.hardnet_cvx import HardNetCvx
from hardnet.layers.hardnet_eq import HardNetEq
from hardnet.layers.kkt_hpinn import KKThPINN
from hardnet.layers.linsat import LinSAT
from hardnet.layers.police import Police
from hardnet.layers.projection import Projection
from hardnet.layers.rayen import Rayen
from hardnet.layers.soft import NoEnforcement, Soft

METHODS: tuple[type[Layer], ...] = (
    HardNetAff,
    HardNetEq,
    Projection,
    HardNetCvx,
    DC3,
    Rayen,
    LinSAT,
    CDGM,
    Cone,
    Police,
    KKThPINN,
    ACnet,
    Soft,
    NoEnforcement,
)
LAYERS: dict[str, type[Layer]] = {layer.name: layer for layer in METHODS}
