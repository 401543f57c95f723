"""Layers: how a set is enforced. One paper, one file."""

from hardnet.layers.acnet import ACnet
from hardnet.layers.auto import Explanation, build_layer, explain
from hardnet.layers.base import Guarantee, Layer
from hardnet.layers.dc3 import DC3
from hardnet.layers.hardnet_aff import HardNetAff
from hardnet.layers.hardnet_eq import HardNetEq
from hardnet.layers.kkt_hpinn import KKThPINN
from hardnet.layers.registry import LAYERS
from hardnet.layers.soft import NoEnforcement, Soft

__all__ = [
    "DC3",
    "LAYERS",
    "ACnet",
    "Explanation",
    "Guarantee",
    "HardNetAff",
    "HardNetEq",
    "KKThPINN",
    "Layer",
    "NoEnforcement",
    "Soft",
    "build_layer",
    "explain",
]
