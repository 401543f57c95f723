/** What the reader moves, and the set C(x) that follows from it. */

import { add, closedForm, dot, nearest, sub, times } from "./plane.js";

/** The picture shows [-4, 4] x [-3, 3]. */
export const HALF = [4, 3];

/**
 * A row turns and shifts with x about its anchor p:  a(x) = (cos t, sin t) with t = angle + turn x,
 * b(x) = a(x) . p + shift x.  The disc has center c + drift x and radius r (1 + grow x).
 */
const ROWS = [
  { p: [1.55, -1.83], angle: 0.35, turn: 0.5, shift: 0.35 },
  { p: [-2.4, 1.76], angle: 1.25, turn: -0.35, shift: -0.3 },
  { p: [-2.2, -0.6], angle: -2.6, turn: 0.25, shift: 0.5 },
];
const DISC = { c: [-0.6, -0.3], r: 1.5, drift: [0.7, 0.2], grow: 0.25 };

/** Scenes by name: which rows are on, whether the disc is, and where raw starts. */
export const SCENES = {
  "Two half-planes": { on: [true, true, false], disc: false, raw: [2.5, -0.2] },
  "Three half-planes": { on: [true, true, true], disc: false, raw: [2.1, 2] },
  "Disc and half-plane": { on: [true, false, false], disc: true, raw: [2.4, 1.5] },
  "Disc alone": { on: [false, false, false], disc: true, raw: [1.9, 1.6] },
  "Empty set": { on: [true, false, false], disc: true, raw: [0.4, 1.6], apart: true },
};

/** A fresh state of the scene of this name. */
export function scene(name) {
  const { on, disc, raw, apart } = SCENES[name];
  const rows = ROWS.map((row, i) => ({ ...row, p: [...row.p], on: on[i] }));
  if (apart) Object.assign(rows[0], { p: [-2.9, 0.2], angle: 0.15 });
  return { scene: name, x: 0, raw: [...raw], target: [-1.1, 2.3], rows, disc: { ...DISC, on: disc }, field: "nearest" };
}

const unit = (angle) => [Math.cos(angle), Math.sin(angle)];

/** Normal, bound, and the points to hold a row by, at the present x. */
export function rowAt(row, x) {
  const a = unit(row.angle + row.turn * x);
  return { a, b: dot(a, row.p) + row.shift * x, anchor: add(row.p, times(row.shift * x, a)) };
}

/** The point to turn a row by: out of its anchor, along the direction that it forbids. */
export const tip = ({ anchor, a }) => add(anchor, times(0.75, a));

/** Center and radius of the disc at the present x. */
export function discAt(disc, x) {
  return { c: add(disc.c, times(x, disc.drift)), r: disc.r * (1 + disc.grow * x) };
}

/** Put the anchor of a row at q, as seen at the present x. */
export function moveRow(row, x, q) {
  row.p = sub(q, times(row.shift * x, rowAt(row, x).a));
}

/** Turn a row to an angle about its anchor, as seen at the present x. */
export function turnRow(row, x, angle) {
  const { anchor } = rowAt(row, x);
  row.angle = angle - row.turn * x;
  moveRow(row, x, anchor);
}

/** Put the center of the disc at q, as seen at the present x. */
export function moveDisc(disc, x, q) {
  disc.c = sub(q, times(x, disc.drift));
}

/** Give the disc a radius, as seen at the present x. */
export function resizeDisc(disc, x, radius) {
  disc.r = Math.min(3, Math.max(0.3, radius)) / (1 + disc.grow * x);
}

/** C(x): the rows that are on, with their indices, and the disc or null. */
export function setAt(state) {
  const indices = state.rows.map((_, i) => i).filter((i) => state.rows[i].on);
  const rows = indices.map((i) => rowAt(state.rows[i], state.x));
  return { indices, rows, disc: state.disc.on ? discAt(state.disc, state.x) : null };
}

/** C(x) and both answers. */
export function solve(state) {
  const set = setAt(state);
  const near = nearest(state.raw, set.rows, set.disc);
  return { ...set, near, closed: closedForm(state.raw, set.rows, set.disc) };
}
