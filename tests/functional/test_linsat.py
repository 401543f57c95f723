"""LinSAT as a function: fixed points of every variant and solver, derivatives, the published package, and failures."""

import pytest
import torch

from hardnet.errors import ConvergenceError, InfeasibleError, NonFiniteError, UnsupportedSetError
from hardnet.functional.linsat import check_positive, find_encoding, linsat
from tests.bounds import of_digits
from tests.draws import draw_uniform, tensor

F64 = torch.float64
WAYS = [("entropic", "newton"), ("v2", "newton"), ("v2", "sweeps"), ("v1", "newton"), ("v1", "sweeps")]
ways = pytest.mark.parametrize(("variant", "solver"), WAYS)


ONES = tensor([1.0, 1.0])
CHAIN = tensor([1.0, 1.0, 0.0], [0.0, 1.0, 1.0])
BISTOCHASTIC = torch.cat(
    [torch.kron(torch.eye(3), torch.ones(1, 3)), torch.kron(torch.ones(1, 3), torch.eye(3))]
).double()


def close(y, expected):
    return torch.allclose(y, torch.as_tensor(expected, dtype=F64), rtol=0, atol=of_digits(6))


@ways
def test_one_row_of_each_kind(variant, solver):
    options = {"temperature": 0.1, "variant": variant, "solver": solver, "max_iterations": 1000}
    assert close(linsat(tensor(0.3, 0.1), ONES, 1.0, 1.0, **options), [0.731059, 0.268941])
    assert close(linsat(tensor(0.3, 0.1), ONES, upper=1.0, **options), [0.680442, 0.223707])
    assert close(linsat(tensor(-0.3, -0.1), ONES, lower=1.0, **options), [0.319558, 0.776293])


@ways
def test_a_variable_in_two_rows_separates_the_variants(variant, solver):
    total = tensor(1.0, 1.2)
    y = linsat(
        tensor(0.1, 0.2, 0.3), CHAIN, total, total, temperature=0.1, variant=variant, solver=solver, max_iterations=3000
    )
    assert close(y, [0.618967, 0.381033, 0.818967] if variant == "v1" else [0.586290, 0.413710, 0.786290])


@ways
def test_unequal_weights_separate_the_faithful_from_the_entropic(variant, solver):
    y = linsat(tensor(3.0, 1.0), tensor([1.0, 2.0]), 1.0, 1.0, temperature=1.0, variant=variant, solver=solver)
    expected = tensor(0.80167, 0.09917) if variant == "entropic" else tensor(0.62802, 0.18599)
    assert torch.allclose(y, expected, rtol=0, atol=of_digits(5))


@pytest.mark.parametrize("variant", ["entropic", "v2"])
def test_doubly_stochastic_with_dependent_rows(variant):
    scores = tensor(0.9, 0.1, 0.3, 0.2, 0.8, 0.4, 0.5, 0.1, 0.7)
    y = linsat(scores, BISTOCHASTIC, 1.0, 1.0, temperature=0.1, variant=variant)
    assert close(y[::4], [0.877777, 0.926067, 0.842111])
    assert (BISTOCHASTIC @ y - 1).abs().max() < 1e-10


@pytest.mark.parametrize("temperature", [1.0, 0.05, 0.002])
def test_rows_hold_to_the_tolerance_at_any_temperature(temperature):
    A = draw_uniform(4, 8, seed=1) * (draw_uniform(4, 8, seed=2) < 0.6)
    middle = 0.1 + 0.8 * draw_uniform(3, 50, 8, seed=3)
    product = middle @ A.mT
    factor = tensor(0.7, 1.0, 1.0, 0.9), tensor(1.3, torch.inf, 1.0, 1.0)
    y = linsat(draw_uniform(3, 50, 8, seed=4), A, product * factor[0], product * factor[1], temperature=temperature)
    assert ((y @ A.mT - product * factor[0]) > -1e-9).all()
    assert ((y @ A.mT - product * factor[1]) < 1e-9).all()
    assert ((y >= 0) & (y <= 1)).all()


def test_a_small_temperature_finds_the_best_vertex():
    y = linsat(tensor(0.9, 0.5, 0.7), torch.ones(1, 3, dtype=F64), upper=1.0, temperature=1e-3)
    assert close(y, [1.0, 0.0, 0.0])


def test_bounds_that_leave_one_point_or_a_face_are_met_in_the_limit():
    assert linsat(tensor(0.3, 0.1), ONES, upper=0.0).max() < 1e-9
    A = torch.cat([ONES, ONES])
    y = linsat(tensor(0.3, 0.1), A, tensor(1.0, -torch.inf), tensor(torch.inf, 1.0))  # one equality, said by two rows
    assert abs(y.sum() - 1) < 1e-9


@ways
def test_derivatives_to_scores_and_bounds(variant, solver):
    A = tensor([1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 2.0, 1.0])

    def enforce(raw, lower, upper):
        return linsat(
            raw, A, lower, upper, temperature=1.0, variant=variant, solver=solver, tolerance=1e-12, max_iterations=3000
        )

    raw, lower, upper = draw_uniform(1, 4), tensor(0.4, 0.7), tensor([1.2, 1.9])
    assert torch.autograd.gradcheck(enforce, [value.requires_grad_() for value in (raw, lower, upper)])


def test_derivative_of_dependent_equalities():
    assert torch.autograd.gradcheck(
        lambda raw: linsat(raw, BISTOCHASTIC, 1.0, 1.0, temperature=0.3), (draw_uniform(2, 9).requires_grad_(),)
    )


def test_lower_bounds_of_zero_say_nothing_sample_by_sample():
    raw, lower = draw_uniform(2, 2), tensor([0.0], [1.5])
    y = linsat(raw, ONES, lower=lower, temperature=0.5)
    assert torch.allclose(y[0], (raw[0] / 0.5).sigmoid(), rtol=0, atol=1e-12)
    assert y[1].sum() > 1.5


def test_float32_is_solved_in_float64():
    y = linsat(draw_uniform(5, 9).float(), BISTOCHASTIC.float(), 1.0, 1.0)
    assert y.dtype == torch.float32
    assert (BISTOCHASTIC @ y.mT.double() - 1).abs().max() < 3e-7


def test_encoding_keeps_what_says_something():
    A = tensor([1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 2.0], [2.0, 1.0])
    nan, inf = torch.nan, torch.inf
    lower, upper = tensor(0.0, 0.0, -inf, 1.0, nan), tensor(9.0, 1.0, 0.5, 1.0, inf)
    encoding = find_encoding(A, lower, upper)
    assert [index.tolist() for index in encoding] == [[0, 2], [4], [3]]


def test_infeasible_samples_are_named_with_their_unsatisfied_rows():
    A = tensor([1.0, 1.0, 0.0], [1.0, 1.0, 1.0])
    lower, upper = tensor([0.1, 0.1], [1.5, 0.1]), tensor([1.9, 0.5], [1.9, 0.5])
    with pytest.raises(
        InfeasibleError, match=r"no y in the unit cube satisfies the rows in samples? 1; unsat"
    ) as error:
        linsat(draw_uniform(2, 3), A, lower, upper)
    assert error.value.samples == [1]
    assert error.value.rows == [[0, 1]]
    y = linsat(draw_uniform(2, 3), A, lower, upper, on_invalid="nan")
    assert y.isnan().all(-1).tolist() == [False, True]
    assert torch.allclose(y[0], linsat(draw_uniform(2, 3)[:1], A, lower[:1], upper[:1])[0], rtol=0, atol=1e-12)


def test_too_few_steps_are_reported():
    with pytest.raises(ConvergenceError, match=r"rows are met to .* only; unsatisfied: \[0, 1\]; raise max_iterations"):
        linsat(tensor(3.0, 1.0, 2.0), CHAIN, 1.0, 1.0, temperature=0.01, max_iterations=1)


def test_a_variant_without_a_fixed_point_says_so_and_the_entropic_one_has_an_answer():
    """Two weighted equalities on the same variables: the published scaling knows their pattern only."""
    A, total = tensor([1.0, 2.0, 3.0], [3.0, 2.0, 2.0]), tensor(2.0, 4.0)
    with pytest.raises(ConvergenceError, match="use variant='entropic'"):
        linsat(tensor(0.5, 0.1, 0.3), A, total, total, variant="v2")
    y = linsat(tensor(0.5, 0.1, 0.3), A, total, total)
    assert torch.allclose(A @ y, total, rtol=0, atol=1e-9)


def test_bad_arguments_are_named():
    with pytest.raises(NonFiniteError, match=r"raw: expected finite numbers, got NaN or inf.* in samples? 1"):
        linsat(tensor([0.1, 0.2], [torch.nan, 0.0]), ONES, upper=1.0)
    for option, message in (
        ({"temperature": 0.0}, "temperature: expected a positive number, got 0"),
        ({"variant": "v3"}, "variant: expected 'entropic', 'v2' or 'v1', got 'v3'"),
        ({"solver": "magic"}, "solver: expected 'newton' or 'sweeps', got 'magic'"),
        ({"solver": "sweeps"}, "solver: expected 'newton' for the entropic variant, got 'sweeps'; use variant='v2'"),
    ):
        with pytest.raises(UnsupportedSetError, match=message):
            linsat(tensor(0.1, 0.2), ONES, upper=1.0, **option)
    assert check_positive(tensor([1.0, 0.0], [1.0, -1.0])) == "row 1 of A has a negative or NaN coefficient"
    assert check_positive(tensor([0.0, 0.0])) == "row 0 of A is all zero"


@pytest.mark.peers
@pytest.mark.parametrize("variant", ["v2", "v1"])
def test_agrees_with_the_published_package(variant):
    peer = pytest.importorskip("LinSATNet")
    A, b = tensor([1.0, 1.0, 0.0, 0.0, 1.0]), tensor(1.5)
    C, d = tensor([0.0, 1.0, 1.0, 1.0, 0.0]), tensor(0.8)
    E, f = tensor([0.0, 0.0, 0.0, 1.0, 1.0]), tensor(0.9)
    raw = draw_uniform(8, 5)
    theirs = peer.linsat_layer(
        raw.float(),
        *(value.float() for value in (A, b, C, d, E, f)),
        tau=0.1,
        mode=variant,
        grouped=variant == "v2",
        max_iter=500,
        no_warning=True,
    )
    lower, upper = tensor(-torch.inf, 0.8, 0.9), tensor(1.5, torch.inf, 0.9)
    ours = linsat(raw, torch.cat([A, C, E]), lower, upper, temperature=0.1, variant=variant)
    assert (ours - theirs).abs().max() < 2e-3
