"""HardNet-Aff as a layer: what it says of its rows when it is made."""

import warnings

import pytest
import torch

import hardnet as hn
from hardnet.layers import HardNetAff


def layer(closeness, dtype):
    """Two rows that are `closeness` apart, one of them a million times longer."""
    A = torch.tensor([[1.0, 0.0], [1e6, 1e6 * closeness]], dtype=torch.float64)
    return HardNetAff(hn.Affine(A.to(dtype), lower=None, upper=torch.ones(2, dtype=dtype)))


@pytest.mark.parametrize(("closeness", "dtype"), [(1e-9, torch.float64), (1e-4, torch.float32)])
def test_nearly_dependent_constant_rows_are_warned_of(closeness, dtype):
    with pytest.warns(hn.errors.ConditionWarning, match="A: condition number .* use method='projection'"):
        layer(closeness, dtype)


@pytest.mark.parametrize(("closeness", "dtype"), [(1e-6, torch.float64), (1e-2, torch.float32), (1.0, torch.float32)])
def test_the_length_of_a_row_is_no_reason_to_warn(closeness, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(closeness, dtype)
