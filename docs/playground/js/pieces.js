/** The problem pwc in double precision: its target and its bound, sign(x) y <= bound(x), on four pieces. */

import { ROUNDINGS, UNIT } from "./unicycle.js";

const wave = (x) => Math.sin((Math.PI / 2) * (x + 1));
const hill = (x) => 4 - 9 * (x - 2 / 3) ** 2;
const pick = (x, pieces) => pieces[x <= -1 ? 0 : x <= 0 ? 1 : x <= 1 ? 2 : 3](x);

/** What the network learns. */
export const target = (x) => pick(x, [(t) => -5 * wave(t), () => 0, hill, (t) => 5 * (1 - t) + 3]);
/** +1 where the bound is above, -1 where it is below. */
export const side = (x) => pick(x, [() => -1, () => 1, () => -1, () => 1]);
/** The bound as a value of y. */
export const bound = (x) => pick(x, [(t) => 5 * wave(t) ** 2, () => 0, (t) => hill(t) * t, (t) => 4.5 * (1 - t) + 3]);

/** By how much y breaks the bound at x, and by how much float32 may: no term of the bound is larger than 16. */
export function check(x, y) {
  return { violation: Math.max(0, side(x) * (y - bound(x))), rounding: ROUNDINGS * UNIT * (Math.abs(y) + 16) };
}
