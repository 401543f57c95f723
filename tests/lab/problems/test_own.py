"""A problem of the reader's own: what it is made of, and one sentence for whatever is wrong with it."""

import pytest
import torch

import hardnet as hn
from hardnet.errors import HardNetError, NonFiniteError, ShapeError

DATA = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
BOX = hn.Box(0.0, lambda x: x)


def squares(y, x):
    return (y - 1).square().sum(-1)


def build(**changes):
    given = {"name": "caps", "x": DATA, "constraint": BOX, "loss": squares, "output_dim": 2} | changes
    return hn.problems.OwnProblem(**given)


def test_data_is_split_in_order_and_kept_in_double_precision():
    problem = build(x=DATA.tolist(), validation=0.25, test=0.1)
    assert (len(problem.train), len(problem.validation), len(problem.test)) == (26, 10, 4)
    assert torch.equal(
        torch.cat([problem.train, problem.validation, problem.test]), torch.tensor(DATA.tolist()).double()
    )


def test_targets_reach_the_loss_and_not_the_network_or_the_constraint():
    seen = []
    target = 3 * DATA[:, :1]

    def loss(y, x, target):
        seen.append((x.shape, target.shape))
        return (y[..., :1] - target).square().sum(-1)

    problem = build(target=target, loss=loss)
    problem.verify()
    y = torch.zeros(len(problem.test), 2, dtype=torch.float64)
    metrics = problem.evaluate(lambda x: y if x.shape[-1] == 2 else None, problem.test)
    assert seen[-1] == ((4, 2), (4, 1))
    torch.testing.assert_close(metrics["objective"], (3 * DATA[-4:, 0].double()).square().mean())
    assert metrics["max_violation"] == 0


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"x": DATA[:, 0]}, ShapeError, r"x: expected \(samples, numbers\), got \(40,\)"),
        ({"x": [[1.0, float("nan")]] * 40}, NonFiniteError, "x: expected finite numbers"),
        ({"target": DATA[:3]}, ShapeError, "target: expected 40 samples, as x has, got 3"),
        ({"x": DATA[:3]}, ShapeError, "samples for training, validation and test"),
        ({"output_dim": None}, ShapeError, "output_dim: expected the number of outputs"),
    ],
)
def test_bad_data_is_refused_by_name(changes, error, said):
    with pytest.raises(error, match=said):
        build(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": lambda y, x: y.square()}, "caps: loss: expected one number per sample"),
        ({"loss": lambda y, x: y.sum(-1).log()}, "caps: its loss is not finite"),
        ({"loss": lambda y, x: 1 / 0}, "caps: its loss or constraint fails; ZeroDivisionError"),
        ({"constraint": hn.Box(0.0, lambda x: x[..., :1] @ x)}, "caps: its loss or constraint fails; RuntimeError"),
    ],
)
def test_a_loss_or_a_constraint_that_fails_is_said_before_anything_runs(changes, said):
    with pytest.raises(HardNetError, match=said):
        build(**changes).verify()


def test_a_float32_tensor_of_the_reader_is_told_to_follow_the_data():
    weight = torch.ones(2, 1)
    with pytest.raises(hn.errors.HardNetError, match=r"trained in float64: write tensors of your own as T\.to\(x\)"):
        build(loss=lambda y, x: (y @ weight).sum(-1)).verify()
