import torch

import hardnet as hn


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
