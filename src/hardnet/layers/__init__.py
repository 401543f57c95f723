"""Layers: how a set is enforced. One file per paper."""

from hardnet.layers.acnet import ACnet
from hardnet.layers.auto import Explanation, build_layer, explain
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.cdgm import CDGM
from hardnet.layers.cone import Cone
from hardnet.layers.dc3 import DC3
from hardnet.layers.dc3_smooth import SmoothDC3
from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.layers.hardnet_cvx import HardNetCvx
from hardnet.layers.hardnet_eq import HardNetEq
from hardnet.layers.kkt_hpinn import KKThPINN
from hardnet.layers.linsat import LinSAT
from hardnet.layers.nonlinear import NonlinearLayer
from hardnet.layers.options import LayerOptions
from hardnet.layers.police import Police
from hardnet.layers.projection import Projection
from hardnet.layers.rayen import Rayen
from hardnet.layers.soft import NoEnforcement, Soft
from hardnet.layers.table import LAYERS, methods, register
from hardnet.layers.union import UnionLayer

__all__ = [
    "CDGM",
    "DC3",
    "LAYERS",
    "ACnet",
    "Cone",
    "Explanation",
    "Guarantee",
    "HardNetAff",
    "HardNetCvx",
    "HardNetEq",
    "KKThPINN",
    "Layer",
    "LayerOptions",
    "LinSAT",
    "NoEnforcement",
    "NonlinearLayer",
    "Police",
    "Projection",
    "Rayen",
    "SmoothDC3",
    "Soft",
    "UnionLayer",
    "build_layer",
    "explain",
    "methods",
    "register",
]
