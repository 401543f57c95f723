/** The view of the model pwc: a learned function between its bounds. */

import { bound, check, side, target } from "./pieces.js";
import { brief, latest, minus, verdict } from "./latest.js";
import { change, element, frame as makeFrame } from "./svg.js";

const GRID = Array.from({ length: 401 }, (_, k) => Math.fround(-2 + k / 100));
const [LOW, HIGH] = [-5, 8];
const TRAINED = 1.2;
const PIECES = [[-2, -1], [-1, 0], [0, 1], [1, 2]];
const byId = (id) => document.getElementById(id);

/** Start the view of a loaded model. */
export function pwc(model) {
  const svg = byId("pwc");
  const frame = makeFrame(svg, [-2, 2], [LOW, HIGH], 800, 500);
  background(svg, frame);
  const cursor = element(svg, "path", { class: "cursor" });
  const lines = { raw: element(svg, "path", { class: "path raw" }), y: element(svg, "path", { class: "path near" }) };
  const dots = { raw: element(svg, "circle", { class: "body raw", r: 7 }), y: element(svg, "circle", { class: "body near", r: 7 }) };
  let shown = null;

  const refresh = latest(async () => {
    const [x, push] = [Math.fround(byId("pwc-x").value), Number(byId("push-pwc").value)];
    const inputs = [...GRID, x];
    const found = await model.run(inputs.map((value) => [value]), inputs.map(() => [push]));
    const [raw, y] = [found.raw.flat(), found.y.flat()];
    change(cursor, { d: frame.path([[x, LOW], [x, HIGH]]) });
    for (const [name, values] of [["raw", raw], ["y", y]]) {
      change(lines[name], { d: frame.path(GRID.map((at, k) => [at, values[k]])) });
      change(dots[name], { transform: frame.put([x, values.at(-1)]) });
    }
    shown = readOut(x, push, inputs, raw, y);
  });
  for (const id of ["pwc-x", "push-pwc"]) byId(id).addEventListener("input", refresh);
  return { ready: refresh(), refresh, shown: () => shown };
}

function background(svg, frame) {
  const hatch = element(element(svg, "defs"), "pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  element(hatch, "path", { class: "hatch", d: "M0 0V8" });
  const [left, top] = frame.to([-TRAINED, HIGH]);
  element(svg, "rect", { class: "starts", x: left, y: top, width: 2 * TRAINED * frame.scale[0], height: 500 });
  for (const [from, to] of PIECES) element(svg, "path", { class: "forbidden", d: forbidden(frame, from, to) });
  element(svg, "path", { class: "target-dots", d: frame.path(GRID.map((x) => [x, target(x)])) });
  for (const x of [-1, 0, 1]) label(svg, frame, [x, LOW + 0.25], minus(x));
  for (const y of [-4, 0, 4]) label(svg, frame, [-1.95, y], minus(y));
  label(svg, frame, [0, HIGH - 0.7], "range of the training points");
}

function label(svg, frame, point, text) {
  element(svg, "text", { class: "tick", y: 5, transform: frame.put(point), "aria-hidden": "true" }).textContent = text;
}

/** What lies on the wrong side of the bound, over one piece. */
function forbidden(frame, from, to) {
  const inner = Array.from({ length: 51 }, (_, k) => from + 1e-9 + (k / 50) * (to - from - 1e-9));
  const wall = side(inner[1]) > 0 ? HIGH : LOW;
  return `${frame.path([[from, wall], ...inner.map((x) => [x, bound(x)]), [to, wall]])}Z`;
}

/** The numbers beside the picture; those that are shown, for tests. */
function readOut(x, push, inputs, raw, y) {
  const worst = (values) => inputs.map((at, k) => check(at, values[k])).reduce((a, b) => (b.violation / b.rounding > a.violation / a.rounding ? b : a));
  const [enforced, free] = [worst(y), worst(raw)];
  const holds = y.every((value, k) => check(inputs[k], value).violation <= check(inputs[k], value).rounding);
  const texts = {
    "push-pwc-value": minus(push.toFixed(2)), "pwc-x-value": minus(x.toFixed(2)),
    "pwc-y": minus(y.at(-1).toFixed(3)), "pwc-raw": minus(raw.at(-1).toFixed(3)),
    "pwc-here": brief(check(x, y.at(-1)).violation), "pwc-raw-here": brief(check(x, raw.at(-1)).violation),
    "pwc-violation": brief(enforced.violation), "pwc-raw-violation": brief(free.violation),
    "pwc-rounding": brief(enforced.rounding),
  };
  for (const [id, text] of Object.entries(texts)) byId(id).textContent = text;
  verdict(byId("pwc-verdict"), holds, holds
    ? "The bound holds at all 401 points and at x, up to the rounding of float32."
    : "The bound is broken: this should not happen.");
  byId("pwc-spoken").textContent = `At x ${x.toFixed(2)} the enforced value is ${y.at(-1).toFixed(2)}, raw is ${raw.at(-1).toFixed(2)}.`;
  return { x, push, y: y.at(-1), raw: raw.at(-1), holds, enforced, free };
}
