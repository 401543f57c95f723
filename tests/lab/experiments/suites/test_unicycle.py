"""References of the unicycle: IPOPT again on two recorded poses; its suite trains in a few steps."""

import pytest
import torch

from hardnet_lab.experiments.suites.catalog import find_suite
from hardnet_lab.problems.suites.hardnetpp import UnicycleControls

pytest.importorskip("casadi")


def test_ipopt_finds_the_recorded_optima_again():
    problem = UnicycleControls()
    x = problem.test[[0, 57]]
    best = find_suite("hardnetpp").cases[1].solve(problem, problem.inputs(x))
    torch.testing.assert_close(best.value, x[:, 3], rtol=1e-8, atol=0)
    torch.testing.assert_close(problem.value(best.point, problem.inputs(x)), x[:, 3], rtol=1e-6, atol=0)


def test_recorded_poses_are_made_again(tmp_path):
    from hardnet.files import read_tensors
    from hardnet_lab.experiments.suites.references import record_states
    from hardnet_lab.problems.suites.hardnetpp import fresh_states

    record_states(tmp_path / "states.safetensors", count=2)
    header, found = read_tensors(tmp_path / "states.safetensors", "expected poses")
    assert header is not None
    assert header["seed"] == 7
    assert found["states"].shape == (2, 21, 3)
    torch.testing.assert_close(found["states"][:, 0], fresh_states(7, 2).float())
