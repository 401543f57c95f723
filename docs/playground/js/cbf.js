/** The view of the model cbf: the unicycle, driven with and without enforcement from a start that the reader moves. */

import { advance, body, check, clearance, OBSTACLES, start } from "./unicycle.js";
import { brief, latest, minus, verdict } from "./latest.js";
import { handle, MARKS } from "./handles.js";
import { change, element, frame as makeFrame } from "./svg.js";

const FIRST = [-3.5, 0.5, -0.4, 0, 0];
const MOST = 400;
const SLOWER = 3000;
const byId = (id) => document.getElementById(id);

/** Start the view of a loaded model. */
export function cbf(model) {
  const svg = byId("cbf");
  const frame = makeFrame(svg, [-4.4, 0.7], [-1.45, 1.7375], 800, 500);
  background(svg, frame);
  const lines = { raw: element(svg, "path", { class: "path raw" }), near: element(svg, "path", { class: "path near" }) };
  const marks = { raw: element(svg, "path", { class: "body raw", d: MARKS.small }), near: element(svg, "path", { class: "body near", d: MARKS.disc }) };
  let first = [...FIRST];
  let paths = null;

  const refresh = latest(async () => {
    const push = [Number(byId("push-speed").value), Number(byId("push-turn").value)];
    paths = await drive(model, first, push);
    change(lines.near, { d: frame.path(paths.near.points) });
    change(lines.raw, { d: frame.path(paths.raw.points) });
    stand(1);
    readOut(paths, push);
  });
  /** Put the two bodies where they are after a share of the second. */
  function stand(share) {
    for (const [name, mark] of Object.entries(marks)) {
      const { points, times } = paths[name];
      const k = times.findLastIndex((time) => time <= share + 1e-9);
      change(mark, { transform: frame.put(points[Math.max(0, k)]) });
    }
  }
  const handles = specs(() => first).map((spec) => handle(svg, frame, spec, moved));
  function moved() {
    handles.forEach((put) => put());
    return refresh();
  }
  for (const id of ["push-speed", "push-turn"]) byId(id).addEventListener("input", refresh);
  byId("cbf-play").addEventListener("click", () => play(stand));
  byId("cbf-reset").addEventListener("click", () => {
    first = [...FIRST];
    for (const id of ["push-speed", "push-turn"]) byId(id).value = 0;
    moved();
  });
  return {
    ready: moved(),
    set(state) {
      first = [...state];
      return moved();
    },
    refresh,
    shown: () => paths,
  };
}

function play(stand) {
  const began = performance.now();
  const tick = (now) => {
    const share = Math.min(1, (now - began) / SLOWER);
    stand(share);
    if (share < 1) requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}

/** The two points by which the start is moved and turned. */
function specs(now) {
  const angle = (q) => Math.atan2(q[1] - now()[1], q[0] - now()[0]);
  const tip = () => [now()[0] + 0.3 * Math.cos(now()[2]), now()[1] + 0.3 * Math.sin(now()[2])];
  return [{
    id: "start", kind: "row", name: "start", mark: MARKS.square, label: "Start, position", visible: () => true,
    at: () => now().slice(0, 2), say: () => now().slice(0, 2).map((value) => value.toFixed(2)).join(", "),
    move: (q) => now().splice(0, 2, ...q),
  }, {
    id: "heading", kind: "row turn", mark: MARKS.small, label: "Start, heading", visible: () => true, at: tip,
    say: () => `${Math.round((now()[2] * 180) / Math.PI)} degrees`, move: (q) => now().splice(2, 1, angle(q)),
    nudge: (sign, step) => now().splice(2, 1, now()[2] + sign * step),
  }];
}

function background(svg, frame) {
  const [left, top] = frame.to([-4, 0.5]);
  element(svg, "rect", { class: "starts", x: left, y: top, width: 0.5 * frame.scale[0], height: 0.5 * frame.scale[1] });
  for (const { c, r } of OBSTACLES) {
    const [cx, cy] = frame.to(c);
    element(svg, "ellipse", { class: "obstacle", cx, cy, rx: r[0] * frame.scale[0], ry: r[1] * frame.scale[1] });
  }
  element(svg, "path", { class: "goal", d: MARKS.plus, transform: frame.put([0, 0]) });
  element(svg, "text", { class: "tick", y: 26, transform: frame.put([0, 0]), "aria-hidden": "true" }).textContent = "goal";
}

/** One second from a state, enforced and raw side by side in one batch; every output is checked on the way. */
async function drive(model, first, push) {
  const names = ["near", "raw"];
  const now = names.map(() => start(first));
  const paths = Object.fromEntries(names.map((name) => [name, emptyPath(first)]));
  for (let k = 0; k < MOST && now.some((one) => one.steps > 0); k += 1) {
    const states = now.map((one) => one.state.map(Math.fround));
    const found = await model.run(states, [push, push]);
    names.forEach((name, i) => {
      if (now[i].steps <= 0) return;
      const y = name === "near" ? found.y[i] : found.raw[i];
      note(paths[name], states[i], y);
      now[i] = y.every(Number.isFinite) ? advance(now[i], y) : { ...now[i], steps: 0 };
      extend(paths[name], now[i]);
    });
  }
  names.forEach((name, i) => { paths[name].state = now[i].state; });
  return paths;
}

const emptyPath = (first) => ({ points: [body(first)], times: [0], checked: 0, finite: true, clearance: clearance(first), worst: null, holds: true });

function note(path, state, y) {
  const found = check(state, y);
  path.checked += 1;
  path.finite &&= y.every(Number.isFinite);
  path.holds &&= found.violation <= found.rounding;
  if (!path.worst || found.ratio > path.worst.ratio) path.worst = found;
}

function extend(path, { state, time }) {
  path.points.push(body(state));
  path.times.push(time);
  path.clearance = Math.min(path.clearance, clearance(state));
}

function readOut({ near, raw }, push) {
  const texts = {
    "push-speed-value": minus(push[0].toFixed(1)), "push-turn-value": minus(push[1].toFixed(0)),
    "cbf-violation": brief(near.worst.violation), "cbf-raw-violation": brief(raw.worst.violation),
    "cbf-rounding": brief(near.worst.rounding),
    "cbf-clearance": minus(near.clearance.toFixed(3)), "cbf-raw-clearance": minus(raw.clearance.toFixed(3)),
    "cbf-steps": near.checked, "cbf-raw-steps": raw.checked,
  };
  for (const [id, text] of Object.entries(texts)) byId(id).textContent = text;
  verdict(byId("cbf-verdict"), near.holds, words(near));
  byId("cbf-spoken").textContent = `${words(near)} Smallest clearance ${near.clearance.toFixed(2)}, without enforcement ${raw.clearance.toFixed(2)}.`;
}

function words({ holds, finite, checked }) {
  if (!finite) return "No control satisfies both barriers at a state on this path: the graph answers NaN, and the drive ends there.";
  return holds
    ? `Both barriers hold at all ${checked} steps, up to the rounding of float32.`
    : "A barrier is broken beyond rounding.";
}
