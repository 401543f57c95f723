"""The measured table: every pair has a row, with numbers or with the method's reason to refuse."""

from hardnet_lab.experiments.measured import measure, overview, standard_sets, table


def test_every_pair_is_measured_or_refused_with_a_remedy():
    rows = measure(names=["aff", "dc3", "rayen", "none"], seconds=0.001)
    assert len(rows) == 4 * len(standard_sets())
    for row in rows:
        if row["refused"] is None:
            assert row["forward_ms"] > 0
            assert row["violation"] < 1e-12 or row["method"] in ("dc3", "none")
        else:
            assert "method='" in row["refused"]
            assert row["violation"] is None
    assert {row["method"] for row in rows if row["set"].startswith("ball") and row["refused"] is None} >= {"none"}
    assert overview(rows).count("\n") == len(standard_sets()) + 1
    assert table(rows).count("\n") == len(rows) + 1
