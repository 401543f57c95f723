"""The contract of the design over every layer and set, and proof that each clause can fail."""

import io
from typing import Any

import pytest
import torch

import hardnet as hn
from hardnet.region import Kind
from hardnet.testing import ContractError, check_layer, check_set
from hardnet.testing.poison import check_poisoned_numbers
from tests.cases import CASES, bound_of, constant_rows, matrix_of, moving_rows
from tests.draws import draw


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer_keeps_the_contract(case):
    torch.compiler.reset()  # all layers share one forward, and torch keeps few compiled versions of a function
    x, raw = case.data()
    check_layer(case.layer(), x, raw, gradients=case.gradients, compiled=case.compiled)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_set_keeps_the_contract(case):
    x, raw = case.data()
    layer = case.layer()
    with torch.no_grad():
        y = layer(raw, x)
    check_set(layer.constraint, y, x)
    check_set(layer.constraint, y + 1.0, x)


@pytest.mark.parametrize("case", [case for case in CASES if hasattr(case.layer(), "solve")], ids=lambda case: case.name)
def test_a_solution_has_the_batch_of_raw(case):
    """One sample without a batch, batches of three dimensions, and none at all."""
    layer, (x, raw) = case.layer(), case.data()
    if Kind.SOFT in layer.constraint.kinds:
        pytest.skip("rows that give way have no solution to show")
    whole = layer.solve(raw, x)
    for view in (lambda part: part[0], lambda part: part[None, :, None], lambda part: part[:0]):
        own = layer.solve(view(raw), None if x is None else view(x))
        for field, all_samples in zip(own, whole, strict=True):
            assert field.shape == view(all_samples).shape
        torch.testing.assert_close(own.y, view(whole.y), rtol=1e-9, atol=1e-10, equal_nan=True)


def test_every_layer_has_a_case():
    assert {case.layer().name for case in CASES} >= set(hn.layers.LAYERS) - {"none", "soft", "police"}


class Broken(hn.layers.HardNetAff):
    """HardNet-Aff with one promise broken on purpose."""

    def __init__(self, constraint, fault, **options):
        super().__init__(constraint, **options)
        self.fault = fault

    def forward(self, raw, x=None):
        return self.fault(super().forward(raw, x), raw, x)


def infeasible(y, raw, x):
    return y + 1e-6


def wrong_dtype(y, raw, x):
    return y.float()


def never_identity(y, raw, x):
    return y * (1 - 1e-15)


def batch_coupled(y, raw, x):
    return y + 0 * y if raw.shape[0] < 2 else y * (1 + 1e-13 * raw[1:].mean().sign().detach())


def hides_nan(y, raw, x):
    return y.nan_to_num()


def spreads_nan(y, raw, x):
    return y + 0 * y.sum()


def drops_gradient(y, raw, x):
    return y.detach() + 0 * raw.sum()


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (infeasible, "not in C"),
        (wrong_dtype, "came back as"),
        (never_identity, "was changed|not in C"),
        (batch_coupled, "batch mates|was changed"),
        (spreads_nan, "batch mates"),
        (hides_nan, "came back as a number"),
    ],
)
def test_a_broken_promise_is_found(fault, promise):
    _, raw = CASES[0].data()
    layer = Broken(constant_rows(), fault, on_invalid="nan")
    with pytest.raises(ContractError, match=promise):
        check_layer(layer, None, raw)


def test_a_dropped_gradient_is_found():
    _, raw = CASES[0].data()
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        check_layer(Broken(constant_rows(), drops_gradient), None, raw)


class Mirrored(hn.Affine):
    """A set whose residual disagrees with its rows."""

    def residual(self, numbers, y):
        return super().residual(numbers, -y)


def test_a_set_that_contradicts_itself_is_found():
    x, raw = CASES[1].data()
    good = moving_rows()
    check_set(good, raw, x)
    bad = Mirrored(constant_rows().A, lower=0.0)
    with pytest.raises(ContractError, match="disagree"):
        check_set(bad, raw)


class Slightly(hn.Affine):
    """Rows that say a little more than the residual, or a residual that is a little more for a sample alone."""

    fault = "rows"

    def rows(self, numbers, like):
        rows = super().rows(numbers, like)
        return rows._replace(A=rows.A * (1 + 1e-12)) if self.fault == "rows" else rows

    def residual(self, numbers, y):
        found = super().residual(numbers, y)
        return found * (1 + 1e-12 * (len(y) == 1)) if self.fault == "batch" else found


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("fault", "promise"), [("rows", "disagree"), ("batch", "its batch")])
def test_a_set_that_is_a_little_wrong_is_found_in_any_unit(fault, promise, unit):
    mine = Slightly(unit * constant_rows().A, lower=0.0)
    mine.fault = "none"
    raw = draw(6, 4)
    check_set(mine, raw)
    mine.fault = fault
    with pytest.raises(ContractError, match=promise):
        check_set(mine, raw)


class HidesBadNumbers(hn.layers.HardNetAff):
    """Zeros where a number of the set, not raw, was bad."""

    def enforce(self, raw, x=None):
        y = super().enforce(raw, x)
        hidden = y.isnan().any(-1, keepdim=True) & raw.isfinite().all(-1, keepdim=True)
        return torch.where(hidden, 9.0, y)


class SpreadsBadNumbers(hn.layers.HardNetAff):
    """NaN for all where a number of the set was bad."""

    def enforce(self, raw, x=None):
        y = super().enforce(raw, x)
        hidden = y.isnan().any(-1, keepdim=True) & raw.isfinite().all(-1, keepdim=True)
        return torch.where(hidden.any(), torch.nan, y)


@pytest.mark.parametrize("constraint", [constant_rows, moving_rows])
@pytest.mark.parametrize(("broken", "promise"), [(HidesBadNumbers, "outside of C"), (SpreadsBadNumbers, "batch mates")])
def test_bad_numbers_are_tried(constraint, broken, promise):
    x, raw = CASES[1].data()
    with pytest.raises(ContractError, match=promise):
        check_poisoned_numbers(broken(constraint()), x, raw)


class FlattensBatches(hn.layers.HardNetAff):
    """One batch dimension, whatever came."""

    def enforce(self, raw, x=None):
        y = super().enforce(raw, x)
        return y.flatten(0, -2) if y.dim() > 2 else y


def test_batches_of_other_ranks_are_tried():
    _, raw = CASES[0].data()
    with pytest.raises(ContractError, match=r"a batch of shape \(1, 6\) came back as \(6, 4\)"):
        check_layer(FlattensBatches(constant_rows()), None, raw)


def test_sets_with_lambdas_keep_the_contract():
    x, raw = CASES[1].data()
    constraint = hn.Affine(lambda x: matrix_of(x), upper=lambda x: bound_of(x))
    check_layer(hn.layers.Projection(constraint), x, raw, gradients=False)


def test_a_layer_that_cannot_be_pickled_for_another_reason_is_found():
    layer = hn.layers.HardNetAff(constant_rows())
    layer.helper = lambda: None
    with pytest.raises(AttributeError, match="pickle"):
        check_layer(layer, None, CASES[0].data()[1], gradients=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_trace_is_right_for_other_numbers_and_can_be_saved_or_is_refused(case):
    layer, (x, raw) = case.layer(), case.data()
    given = (raw,) if x is None else (raw, x)
    if not layer.traceable:
        with pytest.raises(hn.errors.UnsupportedSetError, match=r"torch\.jit\.trace: .*torch\.export"):
            torch.jit.trace(layer, given, check_trace=False)
        return
    with torch.no_grad():
        traced: Any = torch.jit.trace(layer, given, check_trace=False)
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded: Any = torch.jit.load(file)
        for size in (0.01, 1.0, 20.0):
            other = tuple(size * draw(*part.shape, seed=place) for place, part in enumerate(given))
            torch.testing.assert_close(loaded(*other), layer(*other), rtol=1e-9, atol=1e-9 * max(1.0, size))


def test_a_model_in_the_place_of_its_layer_is_named():
    model = hn.HardNet(torch.nn.Linear(4, 4).double(), constant_rows())
    with pytest.raises(hn.errors.DTypeError, match=r"layer: .*got HardNet; the layer of a model is model\.layer"):
        check_layer(model, draw(3, 4), draw(3, 4))  # pyright: ignore[reportArgumentType]
