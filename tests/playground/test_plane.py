"""The playground's plane: what it shows is what the library answers, by hook, mouse, finger and keyboard."""

import random
from collections import defaultdict

import pytest
import torch

import hardnet as hn
from hardnet.solvers import Status

TOLERANCE = 1e-6
MINUS = "\N{MINUS SIGN}"
SOLVE_ALL = """
    return arguments[0].map((state) => {
        playground.plane.set(state);
        return {...playground.plane.solution(), target: state.target};
    });"""


def states(count, seed):
    """Random states of the page: any rows, with and without the disc, some of them with an empty set."""
    draw = random.Random(seed)
    within = lambda size: draw.uniform(-size, size)
    place = lambda size=2.5: [within(size), within(size)]

    def row():
        return {"on": draw.random() < 0.6, "p": place(), "angle": within(4), "turn": within(1), "shift": within(1)}

    def state():
        disc = {"on": draw.random() < 0.5, "c": place(), "r": draw.uniform(0.3, 2.5), "drift": place(1), "grow": 0.25}
        rows = [row(), row(), row()]
        return {"x": within(1), "raw": place(4), "target": place(), "rows": rows, "disc": disc, "field": "nearest"}

    return [state() for _ in range(count)]


def by_kind(found):
    """The answers of the page, grouped by the number of rows and the presence of the disc."""
    kinds = defaultdict(list)
    for entry in found:
        kinds[len(entry["rows"]), entry["disc"] is not None].append(entry)
    return kinds.items()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def constraint(entries, rows, disc):
    """C(x) of one or many states as a set of the library."""
    parts = []
    if rows:
        normals = tensor([[row["a"] for row in entry["rows"]] for entry in entries])
        bounds = tensor([[row["b"] for row in entry["rows"]] for entry in entries])
        parts.append(hn.Affine(lambda _: normals, upper=lambda _: bounds))
    if disc:
        centers, radii = (tensor([entry["disc"][key] for entry in entries]) for key in "cr")
        parts.append(hn.Ball(lambda _: centers, lambda _: radii))
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def test_many_positions_agree_with_the_library(page):
    asked = states(400, seed=1)
    for state, entry in zip(asked, found := page.run(SOLVE_ALL, asked), strict=True):
        entry["raw"] = state["raw"]
    assert sum(entry["near"] is None for entry in found) > 10
    for (rows, disc), entries in by_kind(found):
        if not rows and not disc:
            assert all(entry["near"]["y"] == entry["raw"] for entry in entries)
            continue
        layer = hn.HardNet(torch.nn.Identity(), constraint(entries, rows, disc), on_infeasible="nan", **method(disc))
        raw = tensor([entry["raw"] for entry in entries]).requires_grad_()
        y = layer(raw)
        empty = y.isnan().any(-1)
        assert empty.tolist() == [entry["near"] is None for entry in entries]
        full = [entry for entry in entries if entry["near"]]
        shown = tensor([entry["near"]["y"] for entry in full])
        assert (shown - y.detach()[~empty]).abs().max() <= TOLERANCE
        compare_gradients(full, raw, y, empty, shown)


def method(disc):
    return {"method": "cvx" if disc else "projection"}


def compare_gradients(full, raw, y, empty, shown):
    """J'(y - target) of the page is the gradient of |y - target|²/2 that the library sends back to raw."""
    target = tensor([entry["target"] for entry in full])
    (gradient,) = torch.autograd.grad((y[~empty] - target).square().sum() / 2, raw)
    jacobian = tensor([entry["near"]["jacobian"] for entry in full])
    ours = (jacobian.mT @ (shown - target).unsqueeze(-1)).squeeze(-1)
    assert (gradient[~empty] - ours).abs().max() <= 1e-5


def test_multipliers_and_the_closed_form_agree_with_the_library(page):
    asked = states(200, seed=2)
    for state in asked:
        state["disc"]["on"] = False
    for state, entry in zip(asked, found := page.run(SOLVE_ALL, asked), strict=True):
        entry["raw"] = state["raw"]
    for (rows, _), entries in by_kind(found):
        if not rows:
            continue
        raw = tensor([entry["raw"] for entry in entries])
        A, b = (tensor([[row[key] for row in entry["rows"]] for entry in entries]) for key in "ab")
        solution = hn.solvers.project_affine(raw, A, None, b)
        solved = solution.status == Status.SOLVED
        assert solved.tolist() == [entry["near"] is not None for entry in entries]
        dual = tensor([entry["near"]["dual"] for entry in entries if entry["near"]])
        assert (dual - solution.dual[solved]).abs().max() <= TOLERANCE
        assert all(("y" in entry["closed"]) == (rows <= 2) for entry in entries)
        if rows <= 2:
            expected = hn.functional.enforce_affine(raw, A, upper=b)
            closed = tensor([entry["closed"]["y"] for entry in entries])
            assert ((closed - expected).abs() / expected.abs().clamp_min(1)).max() <= TOLERANCE


def answers(page):
    """What the Python on the page prints, beside what the page shows; they are compared by the way."""
    ran = {}
    exec(page.text("program"), ran)
    solution = page.run("return playground.plane.solution()")
    assert (ran["nearest"] - tensor(solution["near"]["y"])).abs().max() <= TOLERANCE
    for name, y in (("near", ran["nearest"]), ("closed", ran.get("closed_form"))):
        if y is not None:
            expected = "({:.3f}, {:.3f})".format(*(y + 0.0).tolist()).replace("-0.000", "0.000")
            assert page.text(f"{name}-y") == expected.replace("-", MINUS)
            assert page.text(f"{name}-in") == "yes"
    return ran


PARTS = {
    "raw": "state.raw",
    "row-1": "state.rows[0].p",
    "turn-2": "[state.rows[1].angle, 0]",
    "disc": "state.disc.c",
    "rim": "[state.disc.r, 0]",
    "target": "state.target",
}


def scene(page, name):
    page.run(
        "[...document.querySelectorAll('#scenes button')].find((one) => one.textContent === arguments[0]).click()", name
    )


def part(page, handle):
    return tensor(page.run(f"const state = playground.plane.state(); return {PARTS[handle]}"))


@pytest.mark.parametrize("kind", ["mouse", "touch"])
def test_dragging_moves_the_point_and_both_answers(page, kind):
    width = page.run("return document.getElementById('plane').getBoundingClientRect().width")
    for handle in PARTS:
        scene(page, "Disc and half-plane" if handle in ("disc", "rim") else "Two half-planes")
        before = part(page, handle)
        page.drag(handle, 24, -16, kind)
        step = part(page, handle) - before
        assert step.abs().max() > 0.01, handle
        if handle in ("raw", "target", "row-1", "disc"):  # x is 0, so that a point moves as the pointer did
            assert (step - tensor([24, 16]) * 8 / width).abs().max() < 1e-3, handle
        answers(page)


def test_the_input_moves_the_set(page):
    before = answers(page)
    page.press("x", "\ue014" * 30)  # arrow right
    after = answers(page)
    assert page.text("x-value") == "0.300"
    assert (before["A"] - after["A"]).abs().max() > 0.01
    assert (before["nearest"] - after["nearest"]).abs().max() > 0.01


def test_keys_move_every_handle(page):
    left, up, shift = "\ue012", "\ue013", "\ue008"
    for handle in PARTS:
        scene(page, "Disc and half-plane" if handle in ("disc", "rim") else "Two half-planes")
        before = part(page, handle)
        page.press(handle, left, left, up, shift + left)
        step = part(page, handle) - before
        expected = [-0.21, 0.1] if step[1] else [-0.11, 0]  # a handle that turns or resizes adds what the keys ask for
        assert (step - tensor(expected)).abs().max() < 1e-9, handle
        answers(page)
    page.press("tab-plane", "\ue014")
    assert page.run("return document.activeElement.id") == "tab-trained"
    assert page.run("return document.getElementById('panel-plane').hidden")


def test_an_empty_set_is_said(page):
    scene(page, "Empty set")
    assert page.text("near-y") == "C(x) is empty"
    assert page.run("return document.querySelector('.answer.near').getAttribute('display')") == "none"


def test_names_for_those_who_hear_the_page_and_nothing_jumps(page):
    unnamed = """
        const label = (one) => one.getAttribute("aria-label") || one.labels?.[0]?.textContent;
        const named = (one) => label(one)?.trim() || one.textContent.trim();
        const all = document.querySelectorAll("button, input, summary, a, svg[role], .handle, [role=tabpanel]");
        return [...all].filter((one) => !named(one)).map((one) => one.outerHTML);"""
    assert page.run(unnamed) == []
    shift = """
        return new Promise((resolve) => {
            let total = 0;
            new PerformanceObserver((list) => { for (const entry of list.getEntries()) total += entry.value; })
                .observe({type: "layout-shift", buffered: true});
            setTimeout(() => resolve(total), 300);
        });"""
    assert page.run(shift) < 0.01
