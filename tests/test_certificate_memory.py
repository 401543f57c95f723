"""The certificate in blocks of samples: memory beside y is that of the answer, and blocks change nothing."""

import weakref
from math import isnan

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hardnet as hn
from tests.draws import draw

D = torch.float64


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


class Memory(TorchDispatchMode):
    """The bytes of the tensors that operations made and that are still alive: now, and at most."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self.seen = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known | self.seen:
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage):
        where, size = storage.data_ptr(), storage.nbytes()
        self.seen.add(where)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, where, size)

    def _forget(self, where, size):
        self.seen.discard(where)
        self.now -= size


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_memory_beside_y_is_that_of_the_answer(dtype):
    """Blocks of a fixed size where a box holds; the violations in float64 where they are asked for or not all zero.

    Twice that where what is allowed is written out too.
    """
    for samples, n in ((64, 100_000), (16_384, 400)):
        y = torch.full((samples, n), 0.5, dtype=dtype)
        constraint = hn.Box(0.0, 1.0) & hn.Affine(torch.ones(1, n, dtype=dtype), upper=0.5 * n)
        answer, blocks = 8 * samples * (n + 1), 8 * (1 << 21)
        with Memory() as memory:
            certificate = hn.check(constraint, y)
            assert certificate.ok
            assert memory.most <= blocks
            assert certificate.violation.shape == (samples, n + 1)
            assert memory.most <= 1.25 * answer + blocks
            assert len(certificate.by_name()) == n + 1
            assert memory.most <= 2.25 * answer + blocks


@pytest.mark.parametrize("place", [(0, 0), (3, 70), (399, 699)])
@pytest.mark.parametrize("bounds", ["one number", "per output", "per sample"])
@pytest.mark.parametrize("value", [1.0 + 2e-16, 3.0, -torch.inf, torch.nan])
def test_one_output_outside_its_box_is_seen_wherever_it_stands(place, bounds, value):
    """All other outputs are at their bounds, in as many blocks as there may be."""
    count, n = 400, 700
    shape = {"one number": (), "per output": (n,), "per sample": (count, n)}[bounds]
    limit = torch.ones(shape, dtype=D)
    y = torch.ones(count, n, dtype=D)
    constraint = hn.Box(limit, lambda x: x) if bounds == "per sample" else hn.Box(limit, limit)
    assert hn.check(constraint, y, limit).exact_box.all()
    y[place] = value
    certificate = hn.check(constraint, y, limit)
    outside = certificate.violation != 0
    assert outside.nonzero().tolist() == [list(place)]
    assert certificate.exact_box.logical_not().nonzero().flatten().tolist() == [place[0]]
    assert certificate.satisfied[place[0]].item() is (value < 2 and value > 0)
    assert certificate.max_violation == certificate.violation[place] or isnan(value)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_hundred_thousand_outputs_need_memory_of_their_size(samples):
    n = 100_000
    constraint = hn.Box(0.0, 1.0) & hn.Equality(torch.ones(1, n, dtype=D), n / 2) & hn.Simplex(n, total=n / 2)
    y = torch.full((samples, n), 0.5, dtype=D)
    with LargestTensor() as mode:
        assert hn.check(constraint, y).ok
    assert mode.largest <= 3 * samples * n


def test_samples_are_judged_alone_whatever_the_block():
    """More samples than one block holds, bad ones among them, rows shared and per sample."""
    n, count = 700, 400
    A, y = draw(2, n, seed=1), draw(count, n, seed=2)
    y[17, 3], y[211, 5] = torch.nan, torch.inf
    shared = hn.Affine(A, upper=0.0) & hn.Box(-3.0, 3.0)
    moving = hn.Affine(lambda x: A + 0 * x.unsqueeze(-1), upper=lambda x: 0 * x) & hn.Box(-3.0, 3.0)
    together, own = hn.check(shared, y), hn.check(moving, y, torch.zeros(count, 2, dtype=D))
    some = torch.tensor([0, 17, 93, 94, 211, 399])
    alone = torch.cat([hn.check(shared, y[i : i + 1]).violation for i in some])
    torch.testing.assert_close(together.violation[some], alone, rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(together.violation, own.violation, rtol=1e-12, atol=0, equal_nan=True)
    assert torch.equal(together.satisfied, own.satisfied)
