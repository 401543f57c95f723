"""The baselines return raw itself and promise nothing."""

import pytest
import torch

from hardnet.layers import Guarantee, NoEnforcement, Soft
from hardnet.sets import Box

pytestmark = pytest.mark.core

SET = Box(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(("layer", "name"), [(NoEnforcement, "none"), (Soft, "soft")])
def test_returns_raw_itself_and_promises_nothing(layer, name):
    raw = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
    built = layer(SET)
    assert built(raw) is raw
    assert (built.name, built.guarantee, built.raw_dim) == (name, Guarantee.NONE, 3)
    assert built.refusal(SET) is None
