/**
 * The unicycle of the problem cbf, in double precision: its dynamics, its nominal controller and its barriers.
 *
 * A state is [p_x, p_y, heading, speed, turning rate]; a control is two accelerations. With e from an obstacle to the
 * body center, h = (e_x / r_x)² + (e_y / r_y)² - 1 must stay positive. These formulas are written apart from the ones
 * in the exported graph, so that one can check the other.
 */

export const OBSTACLES = [
  { c: [-2.25, 0.5], r: [0.5, 0.75] },
  { c: [-0.8, 0], r: [0.5, 0.5] },
];
export const ARM = 0.1;
export const TIME_STEP = 0.02;
export const STEPS = 50;
const KAPPA = 10;
const ALPHA = 20;

/** Half a unit in the last place of 1 in float32, and how many of them the terms of a row may be off. */
export const UNIT = 2 ** -24;
export const ROUNDINGS = 32;

/** Accelerations that drive the state to the origin, blind to obstacles. */
export function nominal([px, py, heading, speed, turn]) {
  const [cos, sin] = [Math.cos(heading), Math.sin(heading)];
  const distance = Math.hypot(px, py);
  const goalSpeed = Math.min(5, Math.max(-5, -10 * distance * (px * cos + py * sin)));
  const goalTurn = (10 * (px * sin - py * cos)) / (distance + 1e-5);
  return [5 * (goalSpeed - speed), 5 * (goalTurn - turn)];
}

/** Where the body center is. */
export const body = ([px, py, heading]) => [px + ARM * Math.cos(heading), py + ARM * Math.sin(heading)];

/** h of the nearer obstacle: positive outside of both. */
export function clearance(state) {
  const at = body(state);
  return Math.min(...OBSTACLES.map(({ c, r }) => ((at[0] - c[0]) / r[0]) ** 2 + ((at[1] - c[1]) / r[1]) ** 2 - 1));
}

/**
 * The barriers as rows a . y <= b, one for each obstacle, from  d/dt g + α g >= 0  with  g = dh/dt + κ h.
 *
 * With w = 2 e / r², d along and n across the heading, V the velocity of the body center, and u = nominal + y:
 * dh/dt = w . V,  d²h/dt² = sum_k 2 V_k² / r_k² + w . dV/dt,  dV/dt = u_1 d + l u_2 n + ω J V.
 *
 * `size` is the sum of the absolute values of everything that b is added up from: what its rounding is relative to.
 */
export function barriers(state) {
  const [px, py, heading, speed, turn] = state;
  const d = [Math.cos(heading), Math.sin(heading)];
  const n = [-d[1], d[0]];
  const at = body(state);
  const V = [0, 1].map((k) => speed * d[k] + ARM * turn * n[k]);
  const steering = nominal(state);
  const spare = [turn * -V[1], turn * V[0]];
  return OBSTACLES.map(({ c, r }) => {
    const w = [0, 1].map((k) => (2 * (at[k] - c[k])) / r[k] ** 2);
    const rate = w[0] * V[0] + w[1] * V[1];
    const along = w[0] * d[0] + w[1] * d[1];
    const across = ARM * (w[0] * n[0] + w[1] * n[1]);
    const curvature = 2 * (V[0] / r[0]) ** 2 + 2 * (V[1] / r[1]) ** 2;
    const h = ((at[0] - c[0]) / r[0]) ** 2 + ((at[1] - c[1]) / r[1]) ** 2 - 1;
    const drift = w[0] * spare[0] + w[1] * spare[1];
    const drive = along * steering[0] + across * steering[1];
    const b = curvature + drift + drive + (KAPPA + ALPHA) * rate + ALPHA * KAPPA * h;
    return { a: [-along, -across], b, size: sizeOf([px, py], c, r, speed, turn, w) };
  });
}

/** An upper bound of the terms of b, where every difference is replaced by a sum. */
function sizeOf(p, c, r, speed, turn, w) {
  const e = [0, 1].map((k) => Math.abs(p[k]) + ARM + Math.abs(c[k]));
  const reach = 2 * (e[0] / r[0] ** 2 + e[1] / r[1] ** 2);
  const V = Math.abs(speed) + ARM * Math.abs(turn);
  const linear = 25 + 5 * Math.abs(speed) + 30 * V + Math.abs(turn) * V;
  const angular = ARM * (50 * Math.SQRT2 + 35 * Math.abs(turn)) + Math.abs(turn * speed);
  const curvature = 2 * V * V * (r[0] ** -2 + r[1] ** -2);
  const height = ALPHA * KAPPA * (1 + Math.abs(w[0]) * e[0] + Math.abs(w[1]) * e[1]); // h moves by w . e
  return { fixed: curvature + reach * (linear + angular) + height, reach };
}

/** By how much y breaks the rows at this state, and by how much float32 may. */
export function check(state, y) {
  let worst = { violation: 0, rounding: 0, ratio: -Infinity };
  for (const { a, b, size } of barriers(state)) {
    const violation = Math.max(0, a[0] * y[0] + a[1] * y[1] - b);
    const terms = size.fixed + size.reach * (Math.abs(y[0]) + ARM * Math.abs(y[1]));
    const rounding = ROUNDINGS * UNIT * terms;
    const ratio = violation / rounding;
    if (!(ratio <= worst.ratio)) worst = { violation, rounding, ratio };
  }
  return worst;
}

/** All clocks at zero. */
export const start = (state) => ({ state: [...state], remaining: TIME_STEP, steps: STEPS, time: 0 });

/** One Euler step on the sample's own clock, cut where a control is large; nothing where its second is over. */
export function advance(now, y) {
  if (now.steps <= 0) return now;
  const steering = nominal(now.state);
  const control = [steering[0] + y[0], steering[1] + y[1]];
  const longest = 2 / Math.max(Math.abs(control[0]), Math.abs(control[1]));
  const length = Math.min(now.remaining, longest);
  const [, , heading, speed, turn] = now.state;
  const rate = [speed * Math.cos(heading), speed * Math.sin(heading), turn, ...control];
  const state = now.state.map((value, k) => value + length * rate[k]);
  const ended = now.remaining - length <= 0;
  const steps = now.steps - (ended ? 1 : 0);
  return { state, steps, remaining: ended ? TIME_STEP : now.remaining - length, time: now.time + length };
}
