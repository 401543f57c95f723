"""Appendix C: one sample at a small learning rate stalls on the boundary; the other three descents arrive."""

import pytest
import torch

from hardnet_lab.problems.gradient_path import CASES, CEILING, TARGETS, constraint, descend, network


def enforce(raw):
    return torch.cat([raw[:, :1], raw[:, 1:].clamp_max(CEILING)], 1)


@pytest.mark.parametrize("case", CASES)
def test_the_four_descents(case):
    path = descend(enforce, case)
    assert path.raw.shape == path.y.shape == (101, 2, 2)
    assert path.raw.dtype == torch.float32
    assert (path.raw[0, :, 1] > CEILING).all()
    error = (path.y[-1] - torch.tensor(TARGETS))[: case.samples].norm(dim=-1)
    if case == CASES[0]:
        torch.testing.assert_close(path.y[-1, 0], torch.tensor([-0.5, CEILING]), atol=1e-3, rtol=0)
        assert torch.equal(path.raw[-1], path.raw[-2]) or (path.raw[-1] - path.raw[-2]).abs().max() < 1e-5
    else:
        assert error.max() < 1e-3


def test_all_start_from_the_same_weights_and_the_constraint_is_stated():
    first = [descend(enforce, case, steps=0).raw[0] for case in CASES]
    assert all(torch.equal(first[0], other) for other in first)
    state = torch.random.get_rng_state()
    raw = network()(torch.tensor([[0.0]]))
    assert torch.equal(state, torch.random.get_rng_state())
    assert constraint().violation(enforce(raw)).max() == 0
