"""Invalid input: the type and message of every error, and the bits of the other samples."""

import pytest
import torch

from hardnet import errors
from hardnet.functional import enforce_affine, factorize
from tests.functional.affine_problems import problem

pytestmark = pytest.mark.usefixtures("path")

PATHS = pytest.mark.parametrize(("n", "m"), [(4, 1), (4, 2), (6, 3), (12, 12), (20, 12)])
NAN, INF = torch.nan, torch.inf


def refused(kind, words, *arguments, **options):
    with pytest.raises(kind) as caught:
        enforce_affine(*arguments, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return caught.value


def spoil(what, numbers):
    """Make sample 3 of raw, A, lower or upper invalid in one way; return the expected error."""
    raw, A, lower, upper = numbers
    if what == "raw":
        raw[3, 0] = NAN
    elif what == "raw inf":
        raw[3, 0] = INF
    elif what == "A":
        A[3, 0, 0] = NAN
    elif what == "A inf":
        A[3, 0, 0] = INF
    elif what == "order":
        lower[3, 0] = upper[3, 0] + 1
    elif what == "lower inf":
        lower[3, 0] = upper[3, 0] = INF
    elif what == "upper inf":
        lower[3, 0] = upper[3, 0] = -INF
    elif what == "bound nan":
        upper[3, 0] = NAN
    elif what == "zero row":
        A[3, -1] = 0
    elif what == "dependent":
        A[3, -1] = -2 * A[3, 0]


KINDS = {
    "raw": (errors.NonFiniteError, ["raw: expected finite numbers", "sample 3"]),
    "raw inf": (errors.NonFiniteError, ["raw: expected finite numbers", "sample 3"]),
    "A": (errors.NonFiniteError, ["A: expected finite numbers", "sample 3"]),
    "A inf": (errors.NonFiniteError, ["A: expected finite numbers", "sample 3"]),
    "order": (errors.BoundsError, ["lower > upper by up to 1", "row(s) 0", "sample 3"]),
    "lower inf": (errors.BoundsError, ["lower: expected numbers other than NaN and +inf, got +inf", "sample 3"]),
    "upper inf": (errors.BoundsError, ["upper: expected numbers other than NaN and -inf, got -inf", "sample 3"]),
    "bound nan": (errors.BoundsError, ["upper: expected", "got +nan", "sample 3"]),
    "zero row": (errors.RankError, ["A: expected rows other than zero", "of zeros", "sample 3", "drop"]),
    "dependent": (errors.RankError, ["linearly independent rows", "sample 3", "exact projection"]),
}


@PATHS
@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_bad_sample(n, m, what, dtype):
    if m == 1 and what == "dependent":
        pytest.skip("one row depends on nothing")
    numbers = problem(n, m, dtype=dtype)
    healthy = enforce_affine(*numbers)
    spoil(what, numbers)
    kind, words = KINDS[what]
    error = refused(kind, words, *numbers)
    assert error.samples == [3]
    y = enforce_affine(*numbers, on_invalid="nan")
    others = torch.arange(len(y)) != 3
    assert y[3].isnan().all()
    assert torch.equal(y[others], healthy[others])


@PATHS
def test_a_bad_sample_that_is_inside_is_still_bad(n, m):
    raw, A, _, _ = problem(n, m)
    A[3, -1] = A[3, 0] if m > 1 else 0
    lower = (A @ raw.unsqueeze(-1)).squeeze(-1) - 1
    assert refused(errors.RankError, [], raw, A, lower).samples == [3]
    y = enforce_affine(raw, A, lower, on_invalid="nan")
    assert y[3].isnan().all()
    assert torch.equal(y[:3], raw[:3])


@PATHS
@pytest.mark.parametrize("what", ["raw", "order", "upper inf"])
def test_bad_sample_beside_a_shared_matrix(n, m, what):
    numbers = problem(n, m, shared=True)
    healthy = enforce_affine(*numbers)
    spoil(what, numbers)
    assert refused(*KINDS[what], *numbers).samples == [3]
    for options in ({}, {"factor": factorize(numbers[1])}):
        y = enforce_affine(*numbers, **options, on_invalid="nan")
        assert y[3].isnan().all()
        assert torch.equal(y[:3], healthy[:3]) or options
        assert y[4:].isfinite().all()


def test_shared_bad_numbers_name_no_sample():
    raw, A, lower, upper = problem(6, 3, shared=True)
    assert refused(errors.BoundsError, ["lower > upper"], raw, A, upper[0], upper[0] - 1).samples == []
    A[2] = A[0]
    error = refused(errors.RankError, ["dependent to rounding"], raw, A, lower, upper)
    assert error.samples == []
    assert "sample" not in str(error)
    with pytest.raises(errors.RankError, match="dependent"):
        factorize(A)
    A[2] = 0
    with pytest.raises(errors.RankError, match=r"row\(s\) 2 of zeros"):
        factorize(A)
    A[2] = NAN
    with pytest.raises(errors.NonFiniteError, match="A: expected finite"):
        factorize(A)


def test_samples_of_several_batch_dimensions_are_tuples():
    numbers = problem(6, 3, samples=6)
    spoil("order", numbers)
    blocks = [number.unflatten(0, (2, 3)) for number in numbers]
    error = refused(errors.BoundsError, ["(1, 0)"], *blocks)
    assert error.samples == [(1, 0)]


def test_one_sided_bad_bounds():
    raw, A, lower, upper = problem(6, 3)
    upper[3, 1], lower[2, 1] = -INF, INF
    assert refused(errors.BoundsError, ["upper", "-inf"], raw, A, None, upper).samples == [3]
    assert refused(errors.BoundsError, ["lower", "+inf"], raw, A, lower).samples == [2]


def test_more_rows_than_outputs():
    raw, A, lower, upper = problem(3, 5)
    refused(errors.RankError, ["at most n = 3", "got m = 5 rows", "exact projection"], raw, A, lower, upper)
    with pytest.raises(errors.RankError, match="at most n = 3"):
        factorize(A)


def test_shapes():
    raw, A, lower, upper = problem(6, 3)
    refused(errors.ShapeError, ["raw: expected shape (*batch, n)"], torch.tensor(1.0), A, lower, upper)
    refused(errors.ShapeError, ["A: expected shape (m, 6)", "got (16, 3, 5)"], raw, A[..., :5], lower, upper)
    refused(errors.ShapeError, ["A: expected", "got (6,)"], raw, A[0, 0], lower, upper)
    refused(errors.ShapeError, ["lower: expected shape (3,)", "got (16, 2)"], raw, A, lower[:, :2], upper)
    refused(errors.ShapeError, ["upper: expected batch dimensions", "got (7,)"], raw, A, lower, upper[:7])
    refused(errors.ShapeError, ["A: expected batch dimensions"], raw, A[:7], lower, upper)
    refused(errors.ShapeError, ["factor: expected the shape of A"], raw, A[0], lower, upper, factor=A[0, :2])
    with pytest.raises(errors.ShapeError, match="A: expected shape"):
        factorize(A[0, 0])


def test_dtypes_and_devices():
    raw, A, lower, upper = problem(6, 3)
    refused(errors.DTypeError, ["raw: expected a floating-point tensor", "int64"], raw.long(), A, lower, upper)
    refused(errors.DTypeError, ["A: expected a floating-point tensor"], raw, A.long(), lower, upper)
    refused(errors.DTypeError, ["A: expected the dtype of raw", "float32"], raw, A.float(), lower, upper)
    refused(errors.DTypeError, ["upper: expected the dtype of raw"], raw, A, lower, upper.float())
    refused(errors.DTypeError, ["A: expected a tensor", "list"], raw, A.tolist(), lower, upper)
    refused(errors.DeviceError, ["A: expected the device of raw, cpu", "meta"], raw, A.to("meta"), lower, upper)
    with pytest.raises(errors.DTypeError, match="A: expected a floating-point tensor"):
        factorize(A.long())


def test_options():
    raw, A, lower, upper = problem(6, 3, shared=True)
    with pytest.raises(ValueError, match="on_invalid: expected 'raise' or 'nan', got 'ignore'"):
        enforce_affine(raw, A, lower, upper, on_invalid="ignore")
    factor = factorize(A)
    words = ["factor: expected None for an A that requires grad", "leave it out"]
    refused(errors.UnsupportedSetError, words, raw, A.requires_grad_(), lower, upper, factor=factor)
