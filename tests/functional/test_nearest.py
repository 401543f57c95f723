import pytest
import torch

from hardnet.functional import project_affine, project_rows
from hardnet.structure import BoxedRows
from tests.draws import draw


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(1.0, 1.0), (torch.tensor([1.0]), torch.tensor([1.0]))])
def test_equalities_that_hold_keep_raw_in_every_dtype_and_with_numbers_as_bounds(dtype, bounds):
    raw = torch.tensor([[0.25, 0.75], [3.0, 1.0]]).to(dtype)
    lower, upper = (bound.to(dtype) if isinstance(bound, torch.Tensor) else bound for bound in bounds)
    y = project_affine(raw, torch.ones(1, 2, dtype=dtype), lower, upper)
    assert y.dtype == dtype
    assert torch.equal(y[0], raw[0])
    assert torch.equal(y[1], torch.tensor([1.5, -0.5]).to(dtype))


@pytest.mark.parametrize("rows", [1, 6, 20], ids="{} rows".format)
@pytest.mark.parametrize("name", ["metrc", "on_infeasable", "stric"])
def test_an_option_that_there_is_none_of_is_never_ignored(rows, name):
    A = draw(rows, 5)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        project_affine(draw(3, 5), A, upper=1.0, **{name: 1})
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        project_rows(draw(3, 5), BoxedRows(A, None, torch.ones(rows, dtype=torch.float64)), **{name: 1})
