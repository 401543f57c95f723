"""A step taken many times: the same numbers in plain code and as one loop of an exported graph."""

import torch

from hardnet.modes import mode
from hardnet.solvers.polyhedron.fixed import repeat


def newton(point, target):
    return (point + target / point) / 2, target


class Root(torch.nn.Module):
    """Square roots by Newton's steps."""

    def __init__(self, count, early):
        super().__init__()
        self.count, self.early = count, early

    def forward(self, target):
        going = lambda point, aim: ((point * point - aim).abs() > 1e-3).any()
        start, more = (torch.ones_like(target), target), going if self.early else None
        return repeat(newton, start, self.count, more, exported=mode() == "export")[0]


def test_an_exported_loop_takes_the_same_steps():
    batch = torch.export.Dim("batch", min=2)
    target = torch.tensor([2.0, 9.0, 0.5], dtype=torch.float64)
    for count in (2, 6):
        exported = torch.export.export(Root(count, False), (target,), dynamic_shapes=({0: batch},)).module()
        for fresh in (target, torch.linspace(1, 7, 5, dtype=torch.float64)):
            assert torch.equal(exported(fresh), Root(count, False)(fresh))


def test_an_exported_loop_ends_with_the_last_sample():
    target = torch.tensor([1.0, 1.21], dtype=torch.float64)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Root(50, True), (target,), dynamic_shapes=({0: batch},))
    found = program.module()(target)
    assert torch.equal(found, Root(2, False)(target))  # two steps are enough, and 50 would change the last digits
    assert not torch.equal(found, Root(50, False)(target))
    assert len(program.graph.nodes) < 50
