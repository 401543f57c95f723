"""What the general projection returns passes the certificate, also where a raw is outside by a few roundings only."""

import pytest
import torch

import hardnet as hn
from hardnet.solvers.problem import CERTAIN, standard_form
from hardnet.solvers.projection import project_affine
from tests.campaign import run_round


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
    violated = CERTAIN * terms * torch.linspace(-1, 3, 50, dtype=torch.float64).unsqueeze(-1)  # none, some, all
    problem = standard_form(y, A, torch.full_like(product, -torch.inf), product - violated)
    expected = (product - problem.upper - CERTAIN * terms).amax(-1).clamp_min(0)
    found = problem.beyond(y, product)
    assert (found > 0).any()
    assert (found == 0).any()
    # both add up n terms: each sum is off by at most n roundings of itself, times CERTAIN
    rounding = 32 * torch.finfo(torch.float64).eps * CERTAIN * terms.amax(-1)
    assert ((found - expected).abs() <= rounding).all()
