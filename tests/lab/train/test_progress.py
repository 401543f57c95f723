"""Bars at the width of a common terminal: the name, the bar, the percent and the time left are all there."""

import io

import pytest

from hardnet_lab.train import loop as progress

rich = pytest.importorskip("rich")


def line(width):
    from rich import progress as bars
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    shown = bars.Progress(*progress._columns(bars, width), console=console)
    with shown:
        task = shown.add_task("pwc HardNet-Cvx (exact projection)", total=1000, loss="0.1643", violation="2.665e-15")
        for done in (100, 200, 300, 400):
            shown.update(task, completed=done)
    return [text for text in out.getvalue().splitlines() if "%" in text][-1]


def test_80_columns_show_name_bar_percent_and_time_left():
    text = line(80)
    assert "pwc HardNet-Cvx (exact projection)" in text
    assert "━" in text
    assert "40%" in text
    assert "00:" in text or "--:--" in text
    assert "loss" not in text


def test_a_wide_terminal_shows_loss_and_violation():
    text = line(120)
    assert "loss 0.1643" in text
    assert "violation 2.665e-15" in text
