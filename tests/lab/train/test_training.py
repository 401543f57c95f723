"""The loop: stacked seeds equal separate runs, the loss is summed, warm start, history."""

import pytest
import torch
import toy

from hardnet.errors import HardNetError
from hardnet_lab.train import Settings, Training, streams_of
from hardnet_lab.train.loop import draw_mask


@pytest.mark.parametrize("deep", [False, True])
def test_stacked_seeds_equal_separate_runs(deep):
    together = toy.training((1, 2, 3), deep=deep)
    together.run()
    for index, seed in enumerate((1, 2, 3)):
        alone = toy.training((seed,), deep=deep)
        alone.run()
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(together.model.state_dict()[name][index], value[0], rtol=1e-10, atol=1e-12)
        ours = torch.tensor(together.history.loss)[:, index]
        torch.testing.assert_close(ours, torch.tensor(alone.history.loss)[:, 0])


def test_order_and_masks_do_not_depend_on_the_other_seeds():
    together, alone = toy.training((1, 2)), toy.training((2,))
    together.batches.shuffle()
    alone.batches.shuffle()
    assert torch.equal(together.batches.order[1], alone.batches.order[0])
    assert torch.equal(together.batches.masks[1][1], alone.batches.masks[1][0])


def test_every_epoch_is_a_new_permutation_of_all_samples():
    batches = toy.training((1,)).batches
    batches.shuffle()
    first = batches.order.clone()
    batches.shuffle()
    assert not torch.equal(first, batches.order)
    assert batches.order.sort().values.tolist() == [list(range(23))]


def test_one_step_is_adam_on_the_summed_loss():
    run = toy.training((1,), deep=False, epochs=1, batch_size=23)
    reference = toy.training((1,), deep=False)
    optimizer = torch.optim.Adam(reference.parameters, lr=1e-4)
    reference.task.loss(reference.model, reference.task.train.unsqueeze(0), 10.0).sum().backward()
    optimizer.step()
    run.run()
    for ours, theirs in zip(run.parameters, reference.parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_warm_start_runs_without_the_layer_and_then_with_it():
    seen = []
    run = toy.training((1,), deep=False, epochs=4, warm_epochs=2, judge_every=1)
    forward = run.model.forward
    run.model.forward = lambda x, enforce=True: seen.append(enforce) or forward(x, enforce)
    run.run()
    steps_and_judge = 3 + 1
    assert seen == [False] * 2 * steps_and_judge + [True] * 2 * steps_and_judge


def test_history_holds_the_judged_epochs():
    run = toy.training((1, 2), epochs=9, judge_every=4, judge_last=3)
    assert run.run()
    assert run.history.epoch == [0, 4, 6, 7, 8]
    assert all(len(entry) == 2 for entry in run.history.objective)


def test_the_watcher_stops_a_run_between_epochs():
    run = toy.training((1,))
    assert not run.run(lambda training: training.epoch == 2)
    assert run.epoch == 2


def test_training_lowers_the_error():
    run = toy.training((1, 2), deep=False, epochs=60, learning_rate=1e-2)
    run.run()
    assert max(run.history.objective[-1]) < 0.1 * min(run.history.objective[0])


def test_masks_keep_the_asked_share():
    mask = torch.empty(200, 501, dtype=torch.bool)
    draw_mask(mask, 0.8, torch.Generator().manual_seed(1))
    assert abs(mask.double().mean().item() - 0.8) < 5 * (0.16 / mask.numel()) ** 0.5
    draw_mask(mask, 1.0, torch.Generator().manual_seed(1))
    assert mask.all()


def test_the_global_generator_is_not_touched_by_training():
    before = torch.get_rng_state()
    toy.training().run()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["epochs", "batch_size", "judge_every"])
def test_counts_must_be_positive(name):
    with pytest.raises(HardNetError, match=f"{name}: expected at least 1, got 0"):
        Settings(**{"epochs": 1, "batch_size": 1, name: 0})


def test_a_model_without_a_stacked_network_is_refused():
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    with pytest.raises(HardNetError, match=r"model: expected a model around a StackedMLP or .*, got Linear"):
        Training(toy.Toy(), model, streams_of([1]), Settings(1, 1))
