"""The record of a call, checked and classified once, and the structure of a polyhedron."""

import math

import pytest
import torch

import hardnet as hn
from hardnet.rows import take_rows


def test_a_box_keeps_its_structure_beside_general_rows():
    constraint = (
        hn.Box(0.0, 1.0) & hn.Affine(torch.ones(1, 4), upper=2.0) & hn.Box(upper=torch.tensor([3.0, 0.5, 3.0, 3.0]))
    )
    raw = torch.zeros(5, 4)
    rows = constraint.structure(constraint.numbers(None, raw), raw)
    assert rows.A.shape == (1, 4)
    assert rows.boxed
    assert torch.equal(rows.box_lower, torch.zeros(4))
    assert torch.equal(rows.box_upper, torch.tensor([1.0, 0.5, 1.0, 1.0]))


def test_a_simplex_is_one_row_beside_a_box():
    raw = torch.zeros(5, 3)
    constraint = hn.Simplex(3, 2.0)
    rows = constraint.structure(constraint.numbers(None, raw), raw)
    assert rows.A.tolist() == [[1.0, 1.0, 1.0]]
    assert rows.lower.tolist() == rows.upper.tolist() == [2.0]
    assert rows.box_upper is None


F64 = torch.float64


def numbers(*batch, m=2, n=3, dtype=F64):
    """raw, A, lower and upper of any batch."""
    draw = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=F64).to(dtype)
    return draw(*batch, n), draw(*batch, m, n), draw(*batch, m) - 9, draw(*batch, m) + 9


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (2, 1, 4)])
def test_a_record_is_flat_and_knows_the_batch(batch):
    given = numbers(*batch)
    rows = take_rows(*given)
    assert rows.shape == batch
    assert rows.raw.shape == (math.prod(batch), 3)
    for flat, part in zip(rows.numbers, given, strict=True):
        assert torch.equal(rows.as_given(flat) if batch or flat is rows.raw else flat, part)


@pytest.mark.parametrize("batch", [(4,), (2, 3)])
def test_what_all_samples_share_stays_one(batch):
    raw, A, lower, upper = numbers(*batch)
    first = (0,) * len(batch)
    own = take_rows(raw, A[first], lower[first], upper[first], None, raw[first], None)
    assert [part.dim() for part in (own.A, own.lower, own.upper, own.box_lower) if part is not None] == [2, 1, 1, 1]
    ones = take_rows(raw, A[first].reshape(*[1] * len(batch), 2, 3), lower, upper)
    assert torch.equal(ones.A, A[first])  # a batch of ones is shared, too


def test_half_types_are_widened_and_samples_taken():
    rows = take_rows(*numbers(5, dtype=torch.bfloat16))
    assert {part.dtype for part in rows.numbers if part is not None} == {torch.float32}
    some = rows.take(torch.tensor([3, 1]))
    assert some.shape == (2,)
    assert torch.equal(some.A, rows.A[[3, 1]])
    assert some[8:] == rows[8:]


def test_the_record_says_what_stands_around_the_call():
    seen, (raw, *others) = [], numbers(4)

    def record(raw):
        rows = take_rows(raw, *others)
        seen.append((rows.mode, rows.look, rows.memory))
        return raw.sum()

    record(raw)
    torch.func.grad(record)(raw)
    torch.func.jvp(record, (raw,), (raw,))
    torch.jit.trace(record, raw, check_trace=False)
    torch.compile(record, backend="eager", fullgraph=True)(raw)
    torch.export.export(Recording(record), (raw,))
    around = ["eager", "func", "forward", "trace", "compile", "export"]
    assert [mode for mode in around if any(mode == said for said, _, _ in seen)] == around
    assert [(look, memory) for mode, look, memory in seen if mode == "eager"] == [(True, True)]
    assert not any(memory for mode, _, memory in seen if mode != "eager")
    assert not any(look for mode, look, _ in seen if mode in ("func", "compile", "export"))


class Recording(torch.nn.Module):
    """A function as a module, which export asks for."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, raw):
        return self.function(raw)


def test_a_box_becomes_rows_below_the_others():
    raw, A, lower, upper = numbers(5)
    dense = take_rows(raw, A, lower, None, None, raw - 1, raw[0]).dense()
    assert dense.A.shape == (5, 5, 3)
    assert torch.equal(dense.A[:, 2:], torch.eye(3, dtype=F64).expand(5, 3, 3))
    assert torch.equal(dense.lower, torch.cat([lower, raw - 1], -1))
    assert torch.equal(dense.upper, torch.cat([torch.full((2,), torch.inf, dtype=F64), raw[0]]))
    assert dense.box_lower is None
    assert upper.shape == (5, 2)


@pytest.mark.parametrize("batch", [(2, 3), (2, 1, 3)])
def test_stacked_batches_take_the_way_of_a_flat_one(batch):
    """The same bits, by the same path, for every function on rows."""
    given = numbers(*batch)
    flat = take_rows(*given).numbers
    for function in (hn.functional.enforce_affine, hn.functional.project_affine, hn.functional.project_box_rows):
        assert torch.equal(function(*given).reshape(-1, 3), function(*flat)), function
