"""All layers, keyed by the name that ``HardNet(net, constraint, method=name)`` takes."""

from __future__ import annotations

from hardnet.errors import DTypeError, UnsupportedSetError, sentence
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
from hardnet.layers.nonlinear import NonlinearLayer
from hardnet.layers.police import Police
from hardnet.layers.projection import Projection
from hardnet.layers.rayen import Rayen
from hardnet.layers.soft import NoEnforcement, Soft

METHODS: tuple[type[Layer], ...] = (
    HardNetAff,
    HardNetEq,
    Projection,
    HardNetCvx,
    NonlinearLayer,
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
"""Every method by name, including those added by `register`."""


def register(layer: type[Layer]) -> type[Layer]:
    """Make your own method available by name to `HardNet`, `methods`, `explain`, `load` and the command line.

    Works as a function and as a decorator. Import the file that registers a method before loading a model that uses it.

    Args:
        layer: A subclass of `Layer` that defines `name`, `accepts` and `guarantee`.
    """
    if not (isinstance(layer, type) and issubclass(layer, Layer)):
        raise DTypeError(sentence("layer", "a subclass of hn.layers.Layer", repr(layer)))
    missing = [own for own in ("name", "accepts", "guarantee") if not hasattr(layer, own)]
    if missing:
        raise UnsupportedSetError(sentence("layer", f"the class attribute '{missing[0]}'", f"none on {layer.__name__}"))
    known = LAYERS.get(layer.name)
    if layer.name == "auto" or (known is not None and _origin(known) != _origin(layer)):
        raise UnsupportedSetError(sentence("layer.name", "a name of its own", f"'{layer.name}', which is taken"))
    LAYERS[layer.name] = layer
    return layer


def _origin(layer: type[Layer]) -> tuple[str, str]:
    """Where a class was defined: a class that is defined again, as in a notebook, replaces the earlier one."""
    return layer.__module__, layer.__qualname__
