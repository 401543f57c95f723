"""Stacked networks are the separate networks: same start, same statistics, same outputs."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from hardnet.errors import OptionError, ShapeError
from hardnet_lab.train.stacked import StackedBatchNorm, StackedDropout, StackedMLP, streams_of

SIZES = (3, 20, 20, 2)


def published_network(seed, *, batch_norm=False):
    """One seed built as the published code does, in a copy of the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linears = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(SIZES)]
        for linear in linears:
            nn.init.kaiming_normal_(linear.weight)
    norms = [nn.BatchNorm1d(width, dtype=torch.float64) if batch_norm else nn.Identity() for width in SIZES[1:-1]]
    hidden = [module for pair in zip(linears[:-1], norms, strict=True) for module in (*pair, nn.ReLU())]
    return nn.Sequential(*hidden, linears[-1])


def test_initial_weights_are_those_of_separate_networks_bit_for_bit():
    net = StackedMLP(SIZES, streams_of([4, 17]))
    for index, seed in enumerate((4, 17)):
        linears = [module for module in published_network(seed) if isinstance(module, nn.Linear)]
        for stacked, linear in zip(net.linears, linears, strict=True):
            assert torch.equal(stacked.weight[index].T, linear.weight)
            assert torch.equal(stacked.bias[index, 0], linear.bias)


def test_the_global_generator_is_not_touched():
    before = torch.get_rng_state()
    StackedMLP(SIZES, streams_of([1]), batch_norm=True, dropout=0.2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("batch_norm", [False, True])
def test_outputs_gradients_and_statistics_equal_separate_networks(batch_norm):
    seeds = (1, 2)
    net = StackedMLP(SIZES, streams_of(seeds), batch_norm=batch_norm)
    x = torch.randn(2, 9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = net(x)
    out.square().sum().backward()
    for index, seed in enumerate(seeds):
        single = published_network(seed, batch_norm=batch_norm)
        expected = single(x[index])
        expected.square().sum().backward()
        torch.testing.assert_close(out[index], expected)
        torch.testing.assert_close(net.linears[0].weight.grad[index].T, single[0].weight.grad)
        if batch_norm:
            torch.testing.assert_close(net.norms[0].running_var[index, 0], single[1].running_var)
            torch.testing.assert_close(net.norms[0].running_mean[index, 0], single[1].running_mean)
        torch.testing.assert_close(net.eval()(x)[index], single.eval()(x[index]))
        net.train()


def test_inputs_without_seed_dimension_serve_all_seeds():
    net = StackedMLP(SIZES, streams_of([1, 2]))
    x = torch.ones(5, 3, dtype=torch.float64)
    torch.testing.assert_close(net(x), net(x.expand(2, 5, 3)), rtol=1e-13, atol=1e-13)  # another matrix product


def test_the_encoding_comes_first():
    net = StackedMLP(SIZES, streams_of([1]), encode=lambda x: torch.cat([x, x + 1, x + 2], -1))
    plain = StackedMLP(SIZES, streams_of([1]))
    x = torch.tensor([[1.0]], dtype=torch.float64)
    assert torch.equal(net(x), plain(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)))


def test_dropout_scales_what_it_keeps_and_rests_in_testing():
    dropout = StackedDropout(0.2)
    x = torch.ones(1, 2, 3, dtype=torch.float64)
    dropout.mask = torch.tensor([[[True, False, True], [False, True, True]]])
    expected = torch.tensor([[[1.25, 0, 1.25], [0, 1.25, 1.25]]], dtype=torch.float64)
    assert torch.equal(dropout(x), expected)
    assert torch.equal(dropout.eval()(x), x)


def test_shared_statistics_equal_those_of_one_process():
    alone, shared = (StackedBatchNorm(2, 4, torch.float64) for _ in range(2))
    shared.total = lambda value: value
    x = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(alone(x), shared(x))
    torch.testing.assert_close(alone.running_var, shared.running_var)


def test_one_sample_cannot_be_normalized():
    with pytest.raises(ShapeError, match="batch: expected at least 2 samples to normalize over, got 1"):
        StackedBatchNorm(2, 4, torch.float64)(torch.ones(2, 1, 4, dtype=torch.float64))


@pytest.mark.parametrize(("sizes", "seeds"), [((3,), [1]), ((3, 2), [])])
def test_a_network_needs_two_widths_and_a_seed(sizes, seeds):
    with pytest.raises(ShapeError, match="sizes and streams: expected two widths and one seed at least"):
        StackedMLP(sizes, streams_of(seeds))


def test_a_linear_path_starts_at_zero_and_is_added_to_the_output():
    plain = StackedMLP((3, 8, 2), streams_of([1, 2]), activation="silu")
    beside = StackedMLP((3, 8, 2), streams_of([1, 2]), activation="silu", skip=True)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    assert torch.equal(plain(x), beside(x))
    with torch.no_grad():
        beside.skip.weight += 1
    torch.testing.assert_close(beside(x), plain(x) + x.sum(-1, keepdim=True))


def test_dropout_may_differ_from_layer_to_layer():
    net = StackedMLP((3, 8, 8, 2), streams_of([1]), dropout=(0.5, 0.0))
    assert [layer.rate for layer in net.dropouts] == [0.5, 0.0]
    with pytest.raises(ShapeError, match="dropout: expected one share, or 2 of them, got 1"):
        StackedMLP((3, 8, 8, 2), streams_of([1]), dropout=(0.5,))
    with pytest.raises(OptionError, match="activation: expected one of relu, silu, got 'gelu'"):
        StackedMLP((3, 8, 2), streams_of([1]), activation="gelu")
