"""The one table for people."""

from hardnet_lab.experiments.markdown import table_text


def test_columns_are_aligned_floats_are_short_and_what_is_missing_is_a_dash():
    lines = table_text(["name", "x"], [["a", 0.123456], ["longer", None], ["b", 12]]).splitlines()
    assert lines == [
        "| name   | x     |",
        "| ------ | ----- |",
        "| a      | 0.123 |",
        "| longer | -     |",
        "| b      | 12    |",
    ]
