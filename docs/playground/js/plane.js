/**
 * Two ways from raw to a point of C = { y : a_i . y <= b_i for all i, |y - c| <= r } in the plane.
 *
 * A row is { a: [a1, a2], b } with |a| = 1, a disc { c: [c1, c2], r }. Multipliers belong to unit normals, so that they
 * are lengths:  raw - y = sum_i dual_i a_i + dual_disc (y - c) / r.  Jacobians are [[d11, d12], [d21, d22]].
 */

export const add = (u, v) => [u[0] + v[0], u[1] + v[1]];
export const sub = (u, v) => [u[0] - v[0], u[1] - v[1]];
export const times = (s, v) => [s * v[0], s * v[1]];
export const dot = (u, v) => u[0] * v[0] + u[1] * v[1];
export const norm = (v) => Math.hypot(v[0], v[1]);
const cross = (u, v) => u[0] * v[1] - u[1] * v[0];

/** How far a point may be outside and still count as inside: far above rounding, far below what can be seen. */
export const TOLERANCE = 1e-9;
/** Sine of the angle below which two lines count as parallel. */
const PARALLEL = 1e-9;

const IDENTITY = [[1, 0], [0, 1]];
const ZERO = [[0, 0], [0, 0]];

/** The largest amount by which y breaks a constraint; negative inside. */
export function violation(y, rows, disc) {
  const excess = rows.map((row) => dot(row.a, y) - row.b);
  if (disc) excess.push(norm(sub(y, disc.c)) - disc.r);
  return Math.max(-Infinity, ...excess);
}

/**
 * HardNet-Aff:  y = raw - A⁺ relu(A raw - b).  One or two independent rows and nothing else.
 *
 * @returns {{y, jacobian, violated}|{reason}} the answer, or why there is none.
 */
export function closedForm(raw, rows, disc) {
  if (disc) return { reason: "a disc is no affine row" };
  if (rows.length === 0) return { reason: "no rows" };
  if (rows.length > 2) return { reason: "3 rows, 2 outputs" };
  const inverse = pseudoInverse(rows.map((row) => row.a));
  if (!inverse) return { reason: "parallel rows" };
  const excess = rows.map((row) => Math.max(0, dot(row.a, raw) - row.b));
  const violated = excess.map((value) => value > 0);
  let y = raw;
  let jacobian = IDENTITY;
  rows.forEach((row, i) => {
    if (!violated[i]) return;
    y = sub(y, times(excess[i], inverse[i]));
    jacobian = minusOuter(jacobian, inverse[i], row.a);
  });
  return { y, jacobian, violated };
}

/** The columns of A⁺ for one or two rows; null where they are dependent. */
function pseudoInverse(normals) {
  if (normals.length === 1) return [times(1 / dot(normals[0], normals[0]), normals[0])];
  const [p, q] = normals;
  const determinant = cross(p, q);
  if (Math.abs(determinant) < PARALLEL) return null;
  return [[q[1] / determinant, -q[0] / determinant], [-p[1] / determinant, p[0] / determinant]];
}

function minusOuter(matrix, u, v) {
  return matrix.map((line, i) => line.map((value, j) => value - u[i] * v[j]));
}

/**
 * y = argmin |y - raw| over C, by trying every set of at most two constraints that may hold y back.
 *
 * In the plane the nearest point is raw itself, the nearest point of one line or circle, or where two of them meet; it
 * is the feasible one among these that is nearest.
 *
 * @returns {{y, dual, dualDisc, jacobian, active}|null} null where C is empty.
 */
export function nearest(raw, rows, disc) {
  let best = null;
  for (const candidate of candidates(raw, rows, disc)) {
    const others = rows.filter((_, i) => !candidate.active.includes(i));
    const round = candidate.active.includes("disc") ? null : disc;
    if (violation(candidate.y, others, round) > TOLERANCE) continue;
    candidate.distance = norm(sub(candidate.y, raw));
    candidate.multipliers = multipliers(candidate, raw, rows, disc);
    if (!best || better(candidate, best)) best = candidate;
  }
  return best && answer(best, raw, rows, disc);
}

/** Nearer; and of equally near ones that with the larger smallest multiplier, as three lines may meet in a point. */
function better(candidate, best) {
  const gain = best.distance - candidate.distance;
  if (Math.abs(gain) > TOLERANCE) return gain > 0;
  const smallest = (one) => Math.min(0, ...one.multipliers);
  return smallest(candidate) > smallest(best) + TOLERANCE;
}

function candidates(raw, rows, disc) {
  const found = [{ y: raw, active: [] }];
  rows.forEach((row, i) => found.push({ y: add(raw, times(row.b - dot(row.a, raw), row.a)), active: [i] }));
  rows.forEach((row, i) => {
    for (let j = i + 1; j < rows.length; j += 1) {
      const y = meet(row, rows[j]);
      if (y) found.push({ y, active: [i, j] });
    }
  });
  if (disc) {
    found.push({ y: add(disc.c, times(disc.r, direction(disc.c, raw))), active: ["disc"] });
    rows.forEach((row, i) => crossings(row, disc).forEach((y) => found.push({ y, active: [i, "disc"] })));
  }
  return found;
}

/** The unit vector from one point to another; any where they coincide. */
function direction(from, to) {
  const way = sub(to, from);
  const length = norm(way);
  return length > 0 ? times(1 / length, way) : [1, 0];
}

/** Where two lines meet; null where they are parallel. */
function meet(p, q) {
  const determinant = cross(p.a, q.a);
  if (Math.abs(determinant) < PARALLEL) return null;
  return [(p.b * q.a[1] - q.b * p.a[1]) / determinant, (q.b * p.a[0] - p.b * q.a[0]) / determinant];
}

/** The points that a line and a circle share. */
function crossings(row, disc) {
  const gap = row.b - dot(row.a, disc.c);
  const half = disc.r * disc.r - gap * gap;
  if (half < 0) return [];
  const foot = add(disc.c, times(gap, row.a));
  const along = times(Math.sqrt(half), [-row.a[1], row.a[0]]);
  return [add(foot, along), sub(foot, along)];
}

function normalOf(name, y, rows, disc) {
  return name === "disc" ? times(1 / disc.r, sub(y, disc.c)) : rows[name].a;
}

/** The lengths s in  raw - y = sum s_k n_k  over the active constraints. */
function multipliers({ y, active }, raw, rows, disc) {
  const pull = sub(raw, y);
  const normals = active.map((name) => normalOf(name, y, rows, disc));
  if (normals.length === 0) return [];
  if (normals.length === 1) return [dot(pull, normals[0])];
  const determinant = cross(normals[0], normals[1]);
  if (Math.abs(determinant) < PARALLEL) return [dot(pull, normals[0]), 0];
  return [cross(pull, normals[1]) / determinant, cross(normals[0], pull) / determinant];
}

function answer({ y, active, multipliers: lengths }, raw, rows, disc) {
  const dual = rows.map((_, i) => Math.max(0, lengths[active.indexOf(i)] ?? 0));
  const dualDisc = Math.max(0, lengths[active.indexOf("disc")] ?? 0);
  const held = active.filter((_, k) => lengths[k] > 0);
  return { y, dual, dualDisc, active: held, jacobian: jacobianOf(held, raw, rows, disc) };
}

/** I inside, the projector along a line, the shrinking one along a circle, 0 in a corner. */
function jacobianOf(held, raw, rows, disc) {
  if (held.length === 0) return IDENTITY;
  if (held.length === 2) return ZERO;
  if (held[0] !== "disc") return minusOuter(IDENTITY, rows[held[0]].a, rows[held[0]].a);
  const way = direction(disc.c, raw);
  const shrink = disc.r / norm(sub(raw, disc.c));
  return minusOuter(IDENTITY, way, way).map((line) => line.map((value) => shrink * value));
}

/** J' g: the gradient that reaches raw when g is the gradient at y. */
export function pullBack(jacobian, g) {
  return [jacobian[0][0] * g[0] + jacobian[1][0] * g[1], jacobian[0][1] * g[0] + jacobian[1][1] * g[1]];
}
