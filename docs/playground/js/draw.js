/** Draws C(x), the answers, the multipliers as arrows and the gradient field. */

import { add, closedForm, dot, nearest, norm, pullBack, sub, times } from "./plane.js";
import { HALF, tip } from "./scene.js";
import { arrow, change, element, show } from "./svg.js";
import { MARKS } from "./handles.js";

const FAR = 20;
const GRID = 0.4;
/** Length of the longest arrow of the field, and of the loss gradient at which it is reached. */
const LONGEST = 0.34;
const STEEP = 3;

/** Make the layers of the picture, from back to front; the result draws a state and its solution. */
export function picture(svg, frame) {
  const clip = element(element(svg, "defs"), "clipPath", { id: "inside-disc" });
  const hole = element(clip, "circle");
  element(svg, "path", { class: "grid", d: gridLines(frame) });
  const region = element(svg, "path", { class: "region" });
  const circle = element(svg, "circle", { class: "edge" });
  const lines = [0, 1, 2].map(() => element(svg, "path", { class: "edge" }));
  const stems = element(svg, "path", { class: "stem" });
  const field = element(svg, "path", { class: "field" });
  const still = element(svg, "path", { class: "still" });
  const ways = { closed: element(svg, "path", { class: "way closed" }), near: element(svg, "path", { class: "way near" }) };
  const forces = element(svg, "g", { "aria-hidden": "true" });
  const marks = element(svg, "g", { "aria-hidden": "true" });
  const closed = element(marks, "path", { class: "answer closed", d: MARKS.diamond });
  const near = element(marks, "path", { class: "answer near", d: MARKS.disc });
  const place = (mark, point) => {
    show(mark, Boolean(point));
    if (point) change(mark, { transform: frame.put(point) });
  };

  return (state, solution) => {
    const { rows, indices, disc } = solution;
    drawDisc(frame, disc, [hole, circle]);
    change(region, { d: solution.near ? regionPath(frame, rows) : "", "clip-path": disc ? "url(#inside-disc)" : null });
    lines.forEach((line, i) => change(line, { d: linePath(frame, rows[indices.indexOf(i)]) }));
    change(stems, { d: rows.map((row) => frame.path([row.anchor, tip(row)])).join("") });
    const seen = fieldPaths(frame, state, solution);
    change(field, { d: seen.arrows });
    change(still, { d: seen.dots });
    place(near, solution.near?.y);
    place(closed, solution.closed.y);
    change(ways.near, { d: way(frame, state.raw, solution.near?.y) });
    change(ways.closed, { d: way(frame, state.raw, solution.closed.y) });
    drawForces(forces, frame, solution);
  };
}

function gridLines(frame) {
  let d = "";
  for (let k = -3; k <= 3; k += 1) d += frame.path([[k, -HALF[1]], [k, HALF[1]]]);
  for (let k = -2; k <= 2; k += 1) d += frame.path([[-HALF[0], k], [HALF[0], k]]);
  return d;
}

function drawDisc(frame, disc, circles) {
  for (const circle of circles) {
    show(circle, Boolean(disc));
    if (!disc) continue;
    const [cx, cy] = frame.to(disc.c);
    change(circle, { cx, cy, r: disc.r * frame.scale[0] });
  }
}

/** The view, cut by each half-plane in turn. */
function regionPath(frame, rows) {
  let corners = [[-FAR, -FAR], [FAR, -FAR], [FAR, FAR], [-FAR, FAR]];
  for (const row of rows) corners = cut(corners, row);
  return corners.length ? `${frame.path(corners)}Z` : "";
}

function cut(corners, { a, b }) {
  const kept = [];
  corners.forEach((corner, k) => {
    const next = corners[(k + 1) % corners.length];
    const [here, there] = [dot(a, corner) - b, dot(a, next) - b];
    if (here <= 0) kept.push(corner);
    if (here < 0 !== there < 0) kept.push(add(corner, times(here / (here - there), sub(next, corner))));
  });
  return kept;
}

function linePath(frame, row) {
  if (!row) return "";
  const along = times(FAR, [-row.a[1], row.a[0]]);
  return frame.path([sub(row.anchor, along), add(row.anchor, along)]);
}

function way(frame, raw, y) {
  return y ? frame.path([raw, y]) : "";
}

/** raw - y as a chain of arrows from y, one for each multiplier, as long as it. */
function drawForces(group, frame, { near, rows, indices, disc }) {
  group.replaceChildren();
  if (!near) return;
  const parts = indices.map((i, k) => [near.dual[k], rows[k].a, `λ${"₁₂₃"[i]}`]);
  if (disc) parts.push([near.dualDisc, times(1 / disc.r, sub(near.y, disc.c)), "μ"]);
  let from = near.y;
  for (const [length, normal, name] of parts) {
    if (length <= 0.02) continue;
    const to = add(from, times(length, normal));
    element(group, "path", { class: "force", d: arrow(frame.to(from), frame.to(to), 9) });
    const beside = add(times(0.5, add(from, to)), times(0.17, [normal[1], -normal[0]]));
    element(group, "text", { class: "force-name", y: 5, transform: frame.put(beside) }).textContent = name;
    from = to;
  }
}

/**
 * -J'(y - target) over a grid of raw: where gradient descent on |y(raw) - target|²/2 would move each raw output.
 *
 * A dot stands where no gradient arrives.
 */
function fieldPaths(frame, state, { rows, disc, near, closed }) {
  const paths = { arrows: "", dots: "" };
  const method = state.field === "closed" ? closedForm : nearest;
  if (state.field === "off" || !(method === nearest ? near : closed.y)) return paths;
  for (let v = -HALF[1] + GRID / 2; v < HALF[1]; v += GRID) {
    for (let u = -HALF[0] + GRID / 2; u < HALF[0]; u += GRID) {
      const answer = method([u, v], rows, disc);
      const pull = pullBack(answer.jacobian, sub(state.target, answer.y));
      const size = norm(pull);
      if (size < 1e-6) paths.dots += dotAt(frame.to([u, v]));
      else paths.arrows += arrowAt(frame, [u, v], pull, size);
    }
  }
  return paths;
}

const dotAt = ([u, v]) => `M${u.toFixed(1)} ${v.toFixed(1)}h.01`;

function arrowAt(frame, point, pull, size) {
  const half = times((0.5 * LONGEST * Math.min(1, 0.25 + size / STEEP)) / size, pull);
  return arrow(frame.to(sub(point, half)), frame.to(add(point, half)), 4.5);
}
