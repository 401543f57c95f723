"""Names of rows, declared equalities and known bounds: what layers, errors and certificates ask of a set."""

import pytest
import torch

import hardnet as hn
from tests.draws import draw

pytestmark = pytest.mark.core

D = torch.float64


def names(constraint, n, x=None, batch=()):
    like = torch.zeros(*batch, n, dtype=D)
    return constraint.row_names(constraint.numbers(x, like), like)


def test_rows_are_named_after_their_set():
    assert names(hn.Box(0.0, name="limits"), 3) == ["limits[0]", "limits[1]", "limits[2]"]
    assert names(hn.Box(0.0), 2) == ["Box[0]", "Box[1]"]
    assert names(hn.Affine(draw(2, 3), upper=1.0), 3) == ["Affine[0]", "Affine[1]"]
    assert names(hn.Affine(draw(1, 3), upper=1.0, name="budget"), 3) == ["budget"]
    assert names(hn.Affine(lambda x: x.unsqueeze(-2), upper=1.0), 3, draw(4, 3), (4,)) == ["Affine"]
    assert names(hn.Equality(draw(2, 3), 1.0), 3) == ["Equality[0]", "Equality[1]"]
    assert names(hn.Simplex(2, name="shares"), 2) == ["shares[0]", "shares[1]", "shares.total"]
    assert names(hn.Ball(torch.zeros(2, dtype=D), 1.0), 2) == ["Ball"]
    assert names(hn.sets.Smooth(2, lambda y, x: y), 2) == ["Smooth[0]", "Smooth[1]"]


def test_members_keep_their_names_and_unnamed_ones_of_one_class_are_numbered():
    both = hn.Box(0.0, name="limits") & hn.Affine(draw(2, 2), upper=1.0) & hn.Affine(draw(1, 2), upper=1.0)
    assert names(both, 2) == ["limits[0]", "limits[1]", "Affine#0[0]", "Affine#0[1]", "Affine#1"]
    assert len(names(both, 2)) == both.violation(torch.zeros(2, dtype=D)).shape[-1]


def test_names_in_the_order_of_the_structure():
    both = hn.Box(0.0, name="limits") & hn.Simplex(2, name="shares") & hn.Equality(draw(1, 2), 1.0, name="balance")
    like = torch.zeros(2, dtype=D)
    numbers = both.numbers(None, like)
    rows, box = both.structure_names(numbers, like)
    assert rows == ["shares.total", "balance"]
    assert box == ["limits[0] & shares[0]", "limits[1] & shares[1]"]
    assert both.structure(numbers, like).A.shape[-2] == len(rows)


def test_declared_equalities_are_known_without_looking_at_values():
    def equal_by_value(x):
        return x[..., :1]

    both = (
        hn.Affine(draw(1, 2), lower=equal_by_value, upper=equal_by_value)
        & hn.Simplex(2)
        & hn.Box(1.0, 1.0)
        & hn.Equality(draw(2, 2), lambda x: x)
    )
    x, like = draw(4, 2), torch.zeros(4, 2, dtype=D)
    numbers = both.numbers(x, like)
    assert both.equality_rows(numbers, like) == [3, 6, 7]
    assert both.structure(numbers, like).equality == (False, True, True, True)
    box = hn.Box(0.0, 0.0)
    assert box.equality_rows(box.numbers(None, like), like) == []


def test_known_bounds_have_nan_where_only_x_knows():
    like = torch.zeros(2, dtype=D)
    both = (
        hn.Affine(draw(1, 2), upper=lambda x: x)
        & hn.Equality(draw(1, 2), 2.0)
        & hn.Box(torch.tensor([0.0, 1.0], dtype=D))
        & hn.Simplex(2, lambda x: x[..., 0])
    )
    lower, upper = both.fixed_bounds(like)
    inf, nan = torch.inf, torch.nan
    torch.testing.assert_close(lower, torch.tensor([-inf, 2.0, 0.0, 1.0, 0.0, 0.0, nan], dtype=D), equal_nan=True)
    torch.testing.assert_close(upper, torch.tensor([nan, 2.0, inf, inf, inf, inf, nan], dtype=D), equal_nan=True)
    assert hn.Affine(lambda x: x, upper=1.0).fixed_bounds(like) is None


def test_sets_say_what_they_hold():
    text = repr(hn.Affine(draw(2, 3), upper=lambda x: x, name="rows") & hn.Box(0.0, torch.nn.Linear(2, 3)))
    assert "name='rows', A=(2, 3), upper=function of x" in text
    assert "lower=0.0, upper=Linear of x" in text
    assert "dim=4, total=1.0" in repr(hn.Simplex(4))


def test_a_set_of_functions_prints_its_name_size_and_bounds():
    products = hn.Nonlinear(lambda y, x: y, dim=3, upper=1.0, name="products")
    assert repr(products) == "Nonlinear(dim=3, name='products', upper=1.0)"


def test_each_row_may_have_a_name_of_its_own():
    rows = hn.Affine(draw(2, 3), upper=1.0, name=["oxygen", "heat"])
    assert names(rows, 3) == ["oxygen", "heat"]
    assert names(hn.Box(0.0, 1.0, name=("x", "y", "z")), 3) == ["x", "y", "z"]
    assert names(hn.Equality(draw(1, 3), 1.0, name=["sum"]), 3) == ["sum"]
    assert names(hn.Simplex(2, name=["a", "b", "sum"]), 2) == ["a", "b", "sum"]
    assert names(hn.Relaxed(hn.Affine(draw(2, 3), upper=1.0), name=["p", "q"]), 3) == ["p", "q"]
    assert names(hn.Relaxed(rows), 3) == ["oxygen", "heat"]
    both = hn.Box(0.0, name="limits") & rows & hn.Affine(draw(2, 3), upper=1.0)
    assert names(both, 3) == ["limits[0]", "limits[1]", "limits[2]", "oxygen", "heat", "Affine[0]", "Affine[1]"]
    assert "heat" in hn.check(both, torch.full((3,), 1e3, dtype=D)).by_name()
    general, box = both.structure_names(both.numbers(None, torch.zeros(3, dtype=D)), torch.zeros(3, dtype=D))
    assert (general[:2], box[0]) == (["oxygen", "heat"], "limits[0]")
    with pytest.raises(hn.errors.ShapeError, match="a name for each of 2 rows"):
        names(hn.Affine(draw(2, 3), upper=1.0, name=["one"]), 3)
    with pytest.raises(hn.errors.DTypeError, match="name"):
        hn.Box(0.0, name=[1, 2])


def test_names_of_rows_are_saved(tmp_path):
    model = hn.HardNet(torch.nn.Linear(2, 2), hn.Affine([[1.0, 0.0], [1.0, 1.0]], upper=1.0, name=["a", "b"]))
    hn.save(model, tmp_path / "m")
    again = hn.load(tmp_path / "m", torch.nn.Linear(2, 2))
    assert again.constraint.name == ("a", "b")


def test_a_certificate_counts_many_rows_by_their_set():
    many = hn.Box(0.0, 1.0, name="capacity") & hn.Affine(torch.ones(1, 50, dtype=D), upper=1.0, name="balance")
    said = str(hn.check(many, torch.full((2, 50), 3.0, dtype=D)))
    assert "46 more rows, in all capacity: 50 rows, balance" in said
