"""Schedule, weight decay and clipping, seed by seed; a resumed run goes on bit for bit."""

import math

import pytest
import torch
import toy
from torch import nn

from hardnet.errors import HardNetError
from hardnet_lab.train import Settings, load_checkpoint, save_checkpoint
from hardnet_lab.train.settings import Clipping, build_optimizer, set_rate

RECIPE = {"learning_rate": 1e-2, "schedule": "cosine", "clip": 2.0, "weight_decay": 0.1}


def test_the_cosine_falls_from_the_rate_to_nearly_nothing():
    settings = Settings(epochs=10, batch_size=4, learning_rate=1e-2, schedule="cosine")
    optimizer = build_optimizer([nn.Parameter(torch.ones(2, 3))], settings)
    rates = []
    for epoch in range(10):
        set_rate(optimizer, settings, epoch)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == 1e-2
    assert rates[5] == pytest.approx(5e-3, rel=1e-12)
    assert rates[9] == pytest.approx(1e-2 * (1 + math.cos(0.9 * math.pi)) / 2, rel=1e-12)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(HardNetError, match="schedule: expected one of constant, cosine, got 'linear'"):
        Settings(epochs=1, batch_size=1, schedule="linear")


def gradients(scales):
    parameter = nn.Parameter(torch.zeros(len(scales), 2, dtype=torch.float64))
    parameter.grad = torch.tensor([[0.6 * scale, 0.8 * scale] for scale in scales], dtype=torch.float64)
    return parameter


def test_a_wild_gradient_is_cut_at_so_many_times_the_running_mean_of_its_own_seed():
    clip = Clipping(2.0, 3, torch.device("cpu"))
    first = gradients([1.0, 2.0, 0.0])
    clip([first])
    torch.testing.assert_close(first.grad.norm(dim=1), torch.tensor([1.0, 2.0, 0.0]).double())
    second = gradients([50.0, 3.0, 7.0])
    clip([second])
    torch.testing.assert_close(second.grad.norm(dim=1), torch.tensor([2.0, 3.0, 7.0]).double())
    torch.testing.assert_close(clip.mean, torch.tensor([1.01, 2.01, 7.0]).double())


def test_a_gradient_that_is_not_finite_stops_its_seed_alone():
    clip = Clipping(2.0, 2, torch.device("cpu"))
    clip([gradients([1.0, 1.0])])
    broken = gradients([1.0, math.nan])
    clip([broken])
    torch.testing.assert_close(broken.grad.norm(dim=1), torch.tensor([1.0, 0.0]).double())
    torch.testing.assert_close(clip.mean, torch.ones(2).double())


def test_a_skipped_step_leaves_the_running_mean_alone():
    clip = Clipping(2.0, 1, torch.device("cpu"))
    clip([gradients([1.0])])
    clip([gradients([9.0])], torch.tensor(True))
    torch.testing.assert_close(clip.mean, torch.ones(1).double())


def test_stacked_seeds_equal_separate_runs_with_every_part_of_a_recipe():
    together = toy.training((1, 2), deep=False, **RECIPE)
    together.run()
    alone = toy.training((2,), deep=False, **RECIPE)
    alone.run()
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(together.model.state_dict()[name][1], value[0], rtol=1e-10, atol=1e-12)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    whole = toy.training((1, 2), **RECIPE)
    whole.run()
    first = toy.training((1, 2), **RECIPE)
    first.run(lambda run: run.epoch == 3)
    save_checkpoint(first, tmp_path / "c.safetensors", {"run": 1})
    second = toy.training((1, 2), **RECIPE)
    load_checkpoint(second, tmp_path / "c.safetensors", {"run": 1})
    second.run()
    for name, value in toy.numbers(whole).items():
        assert torch.equal(value, toy.numbers(second)[name]), name
