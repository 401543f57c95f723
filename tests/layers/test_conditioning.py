"""Methods that solve equalities: right to the certificate at any conditioning, or refused; never in between."""

import warnings

import pytest
import torch

import hardnet as hn
from hardnet.errors import ConditionWarning, InfeasibleError, RankError

BATCH, OUTPUTS = 40, 6


def nearly_dependent(seed, power, dtype):
    """Three rows, the second the first plus 10^-power of another, raw outputs, and consistent right-hand sides."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(3, OUTPUTS, generator=generator, dtype=torch.float64)
    A[1] = A[0] + 10.0**-power * A[1]
    raw, point = 3 * torch.randn(2, BATCH, OUTPUTS, generator=generator, dtype=torch.float64)
    return A.to(dtype), raw.to(dtype), (point @ A.mT).to(dtype)


def with_inequality(A):
    return hn.Equality(A[:2], lambda x: x[..., :2]) & hn.Affine(A[2:], upper=lambda x: x[..., 2:])


def equalities(A):
    return hn.Equality(A, lambda x: x)


LAYERS = [
    (hn.layers.HardNetEq, with_inequality),
    (hn.layers.HardNetEq, equalities),
    (hn.layers.ACnet, equalities),
    (hn.layers.KKThPINN, equalities),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("kind", "build"), LAYERS)
def test_every_answer_passes_the_certificate_or_is_refused(kind, build, dtype):
    answered = []
    for power in range(0, 17, 2):
        for seed in range(5):
            A, raw, right = nearly_dependent(seed, power, dtype)
            constraint = build(A)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConditionWarning)
                    layer = kind(constraint)
                    y = layer(raw[..., : layer.raw_dim], right)
            except (RankError, InfeasibleError):
                continue
            certificate = hn.check(constraint, y, right)
            assert certificate.ok, f"10^-{power}, seed {seed}: {certificate}"
            answered.append(power)
    easy = range(0, 9 if dtype == torch.float64 else 5, 2)
    assert all(answered.count(power) == 5 for power in easy), "moderate conditioning is no reason to refuse"


@pytest.mark.parametrize("kind", [hn.layers.HardNetEq, hn.layers.ACnet, hn.layers.DC3, hn.layers.KKThPINN])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_as_many_equalities_as_outputs_leave_one_point(kind, n):
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(n, n, generator=generator, dtype=torch.float64)
    layer = kind(equalities(A))
    x = torch.randn(7, n, generator=generator, dtype=torch.float64).requires_grad_()
    y = layer(torch.zeros(7, layer.raw_dim, dtype=torch.float64), x)
    torch.testing.assert_close(y, torch.linalg.solve(A, x.mT).mT)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.linalg.inv(A).sum(0).expand(7, n))
