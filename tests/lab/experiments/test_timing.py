"""The one clock: medians in turns, slow work once."""

from hardnet_lab.experiments import timing


def test_a_slow_piece_of_work_is_called_once_and_says_so(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))  # every call takes a second
    calls = []
    timings = timing.time_each({"slow": lambda: calls.append(1) or len(calls)}, "cpu", slow=999.0)
    assert timings["slow"] == (1000.0, 1, 1)
    assert timing.time_each({"quick": lambda: 7}, "cpu", seconds=0.0, slow=1001.0)["quick"] == (1000.0, 5, 7)
