"""How numbers lie in memory changes nothing: transposed, strided, shifted raws, numbers of x and gradients."""

import warnings

import pytest
import torch

from hardnet.errors import HardNetError
from tests.campaign import FAMILIES
from tests.campaigns.drawing import Draw


def strided(number):
    """Every second number of a longer tensor, NaN between them."""
    longer = number.new_full((*number.shape[:-1], 2 * number.shape[-1]), torch.nan)
    longer[..., ::2] = number
    return longer[..., ::2]


LAYOUTS = {
    "transposed": lambda number: number.mT.contiguous().mT,
    "samples last": lambda number: number.movedim(0, -1).contiguous().movedim(-1, 0),
    "strided": strided,
}


def answered(case, layout):
    """Y and the gradient of raw, where every number lies in memory by `layout`; an error's name instead."""
    lie = lambda number: layout(number) if number.dim() > 1 else number
    x = None if case.x is None else {name: lie(number) for name, number in case.x.items()}
    raw = lie(case.raw).requires_grad_()
    try:
        y = case.layer(raw, x)
    except HardNetError as error:
        return type(error).__name__
    if not y.requires_grad:  # an exported program has no derivative
        return (y,)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    return y.detach(), torch.autograd.grad(y, raw, lie(weight))[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layout_in_memory_changes_neither_y_nor_its_gradient(family, layout):
    """Another layout may add in another order: bits may differ, by rounding that the condition of a round enlarges."""
    torch._dynamo.reset()  # or what other tests compiled counts against the limit of this one
    for seed in range(6):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                case = FAMILIES[family](Draw(seed), 7)
        except HardNetError:
            continue
        plain, other = answered(case, torch.Tensor.contiguous), answered(case, LAYOUTS[layout])
        if isinstance(plain, str):
            assert other == plain
            continue
        assert len(plain) == 2 or family in ("exported", "onnx")  # every other answer carries its gradient
        for one, two in zip(plain, other, strict=True):
            torch.testing.assert_close(
                two, one, rtol=1e-3, atol=1e-3 * float(one.abs().nan_to_num().max()), equal_nan=True
            )
