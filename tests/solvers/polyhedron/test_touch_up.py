"""What the general projection returns passes the certificate, also where a raw is outside by a few roundings only."""

import pytest
import torch

import hardnet as hn
from hardnet.certificate import ROUNDINGS
from hardnet.functional.nearest import any_rows
from hardnet.nearest.policy import QUIET
from hardnet.rows import take_rows
from hardnet.solvers import Status, project_affine
from hardnet.solvers.polyhedron.problem import GENERAL, standard_form
from tests.campaign import run_round
from tests.campaigns.drawing import of_samples
from tests.draws import draw


def slightly_outside(seed, roundings, m=9, n=6):
    """Rows with a common point, so many roundings away from a raw that violates some of them."""
    random = torch.Generator().manual_seed(seed)
    A = torch.randn(40, m, n, generator=random, dtype=torch.float64)
    raw = torch.randn(40, n, generator=random, dtype=torch.float64) * 10.0 ** (seed % 5)
    away = torch.randn(40, n, generator=random, dtype=torch.float64) * raw.norm(dim=-1, keepdim=True)
    eps = torch.finfo(torch.float64).eps
    inside = raw + roundings * eps * away
    room = 4 * eps * (A.abs() * raw.abs().unsqueeze(-2)).sum(-1)  # what the rounding of the bounds may take away
    return raw, A, (A * inside.unsqueeze(-2)).sum(-1) + room


@pytest.mark.parametrize("roundings", [20, 100, 400])
def test_a_raw_that_the_certificate_refuses_is_moved(roundings):
    for seed in range(6):
        raw, A, upper = slightly_outside(seed, roundings)
        y = hn.functional.project_affine(raw, A, upper=upper)
        constraint = hn.Affine(lambda x, A=A: A, upper=lambda x, upper=upper: upper)
        assert hn.check(constraint, y, raw).ok
        # no farther than the rows are: |y - raw| <= sum of their distances, each some roundings of raw
        assert (y - raw).norm(dim=-1).max() <= 100 * roundings * 2.3e-16 * raw.norm(dim=-1).max()


@pytest.mark.parametrize(("m", "n"), [(9, 2), (28, 12), (20, 6)])
def test_rows_that_meet_in_one_point_are_met_or_it_is_told(m, n):
    """Bounds that are rounded may leave no point: from far away, what fails the certificate is not called solved."""
    solved = 0
    for seed in range(6):
        A, point = draw(40, m, n, seed=seed), draw(40, n, seed=seed + 100)
        raw, upper = point + 300 * draw(40, n, seed=seed + 200), (A * point.unsqueeze(-2)).sum(-1)
        lower = torch.where(draw(40, m, seed=seed + 300) > 0, -torch.inf, upper)
        found = any_rows(take_rows(raw, A, lower, upper), QUIET, prove=True)
        good = found.status == Status.SOLVED
        numbers = {"A": A[good], "lower": lower[good], "upper": upper[good]}
        assert hn.check(of_samples(numbers), found.y[good], numbers).ok
        solved += int(good.sum())
    assert solved >= 0.9 * 240  # least squares on the rows at their bounds meet most of them


def test_a_certificate_allows_as_many_roundings():
    assert GENERAL.allowed == ROUNDINGS


def test_a_raw_inside_to_rounding_keeps_its_bits():
    raw, A, upper = slightly_outside(1, 0)
    assert torch.equal(hn.functional.project_affine(raw, A, upper=upper), raw)


def test_the_samples_that_a_campaign_found():
    assert run_round("projection", 100001462, 128)["wrong"] == 0


def test_the_correction_of_a_sample_does_not_depend_on_its_mates():
    raw, A, upper = slightly_outside(3, 100)
    together = project_affine(raw, A, None, upper).y
    for index in (0, 7, 39):
        alone = project_affine(raw[index : index + 1], A[index : index + 1], None, upper[index : index + 1]).y
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize("shared", [False, True])
def test_the_look_finds_what_the_terms_of_every_row_say(shared):
    """Rows are added up only where ``|a'y|`` does not decide: the answer is that of all rows."""
    random = torch.Generator().manual_seed(0)
    A = torch.randn(8, 16, generator=random, dtype=torch.float64)
    A = A if shared else A + torch.randn(50, 8, 16, generator=random, dtype=torch.float64)
    y = torch.randn(50, 16, generator=random, dtype=torch.float64)
    product = (A @ y.unsqueeze(-1)).squeeze(-1)
    terms = (A.abs() @ y.abs().unsqueeze(-1)).squeeze(-1)
    violated = GENERAL.certain * terms * torch.linspace(-1, 3, 50, dtype=torch.float64).unsqueeze(-1)  # none, some, all
    problem = standard_form(y, A, torch.full_like(product, -torch.inf), product - violated)
    expected = (product - problem.upper - GENERAL.certain * terms).amax(-1).clamp_min(0)
    found = problem.beyond(y, product)
    assert (found > 0).any()
    assert (found == 0).any()
    # both add up n terms: each sum is off by at most n roundings of itself, times GENERAL.certain
    rounding = 32 * torch.finfo(torch.float64).eps * GENERAL.certain * terms.amax(-1)
    assert ((found - expected).abs() <= rounding).all()


def nearly_parallel(angle, seed, m=5, n=6):
    """Two rows at this angle and one against them, through a common point."""
    random = torch.Generator().manual_seed(seed)
    A = torch.randn(100, m, n, generator=random, dtype=torch.float64)
    A[:, 1], A[:, 2] = A[:, 0] + angle * A[:, 1], -A[:, 0] + angle * A[:, 2]
    point, raw = (torch.randn(100, n, generator=random, dtype=torch.float64) * size for size in (1.0, 3.0))
    return raw, A, (A @ point.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("angle", [1e-3, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12])
def test_the_residual_is_that_of_the_returned_point(angle):
    """In rows of length one and samples whose largest number is one, as `Solution.residual` is stated."""
    for seed in range(4):
        raw, A, upper = nearly_parallel(angle, seed)
        found = project_affine(raw, A, None, upper)
        solved = found.status == 0
        norm = A.norm(dim=-1)
        stationary = (found.y - raw + (A.mT @ found.dual.unsqueeze(-1)).squeeze(-1)).abs().amax(-1)
        product = (A @ found.y.unsqueeze(-1)).squeeze(-1)
        complementary = ((product - torch.minimum(product + found.dual * norm**2, upper)).abs() / norm).amax(-1)
        size = raw.abs().amax(-1)
        residual = torch.maximum(stationary, complementary) / size
        # a unit of a sample is at most 4 times its raw; n roundings of the terms that cancel, ten times for the slack
        weight = (A.mT.abs() @ found.dual.abs().unsqueeze(-1)).squeeze(-1).amax(-1)
        rounding = 10 * 6 * torch.finfo(torch.float64).eps * (weight + size) / size
        assert (residual <= 4 * found.residual + rounding)[solved].all()
