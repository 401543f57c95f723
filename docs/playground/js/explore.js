/** The first tab: the reader moves raw, the set and x, and sees both answers follow. */

import { norm, sub, violation, TOLERANCE } from "./plane.js";
import { discAt, HALF, moveDisc, moveRow, resizeDisc, rowAt, scene, SCENES, solve, tip, turnRow } from "./scene.js";
import { frame as makeFrame } from "./svg.js";
import { picture } from "./draw.js";
import { handle, MARKS } from "./handles.js";
import { program } from "./python.js";

const byId = (id) => document.getElementById(id);
const shown = (value) => (Math.abs(value) < 5e-4 ? 0 : value).toFixed(3).replace("-", "−");
const point = (p) => `(${shown(p[0])}, ${shown(p[1])})`;
const spoken = (p) => `${p[0].toFixed(2)}, ${p[1].toFixed(2)}`;

/** Start the tab; what is returned lets a test set a state and read what is shown. */
export function explore() {
  let state = scene(Object.keys(SCENES)[0]);
  const svg = byId("plane");
  const frame = makeFrame(svg, [-HALF[0], HALF[0]], [-HALF[1], HALF[1]], 800, 600);
  const draw = picture(svg, frame);
  const handles = specs(() => state).map((spec) => handle(svg, frame, spec, () => refresh()));
  let announced = 0;

  function refresh() {
    const solution = solve(state);
    draw(state, solution);
    handles.forEach((place) => place());
    readOut(state, solution);
    controls(state, solution);
    clearTimeout(announced);
    announced = setTimeout(() => { byId("spoken").textContent = sentence(state, solution); }, 500);
  }

  function set(changes) {
    state = { ...state, ...changes };
    refresh();
  }

  connect(() => state, set);
  new ResizeObserver(refresh).observe(svg);
  refresh();
  return { state: () => structuredClone(state), set, solution: () => structuredClone(solve(state)) };
}

/** Every point that can be moved. */
function specs(now) {
  const made = [];
  [0, 1, 2].forEach((i) => {
    const row = () => now().rows[i];
    const here = () => rowAt(row(), now().x);
    const angle = () => Math.atan2(here().a[1], here().a[0]);
    made.push({
      id: `row-${i + 1}`, kind: "row", name: `${i + 1}`, mark: MARKS.square, label: `Half-plane ${i + 1}, position`,
      visible: () => row().on, at: () => here().anchor, say: () => spoken(here().anchor),
      move: (q) => moveRow(row(), now().x, q),
    }, {
      id: `turn-${i + 1}`, kind: "row turn", mark: MARKS.small, label: `Half-plane ${i + 1}, direction it forbids`,
      visible: () => row().on, at: () => tip(here()), say: () => `${Math.round((angle() * 180) / Math.PI)} degrees`,
      move: (q) => turnRow(row(), now().x, Math.atan2(...sub(q, here().anchor).reverse())),
      nudge: (sign, step) => turnRow(row(), now().x, angle() + sign * step),
    });
  });
  const disc = () => discAt(now().disc, now().x);
  const rim = () => [disc().c[0] + disc().r * Math.SQRT1_2, disc().c[1] - disc().r * Math.SQRT1_2];
  made.push({
    id: "disc", kind: "row", name: "disc", mark: MARKS.square, label: "Disc, center", visible: () => now().disc.on,
    at: () => disc().c, say: () => spoken(disc().c), move: (q) => moveDisc(now().disc, now().x, q),
  }, {
    id: "rim", kind: "row turn", mark: MARKS.small, label: "Disc, radius", visible: () => now().disc.on, at: rim,
    say: () => disc().r.toFixed(2), move: (q) => resizeDisc(now().disc, now().x, norm(sub(q, disc().c))),
    nudge: (sign, step) => resizeDisc(now().disc, now().x, disc().r + sign * step),
  }, {
    id: "target", kind: "target", name: "target", mark: MARKS.plus, label: "Target of the loss",
    visible: () => now().field !== "off", at: () => now().target, say: () => spoken(now().target),
    move: (q) => { now().target = q; },
  }, {
    id: "raw", kind: "raw", name: "raw", mark: MARKS.disc, label: "Raw output of the network", visible: () => true,
    at: () => now().raw, say: () => spoken(now().raw), move: (q) => { now().raw = q; },
  });
  return made;
}

/** Buttons, checkboxes, the slider and the choice of the field. */
function connect(now, set) {
  for (const name of Object.keys(SCENES)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => set(scene(name)));
    byId("scenes").append(button);
  }
  byId("x").addEventListener("input", (event) => set({ x: Number(event.target.value) }));
  [1, 2, 3].forEach((i) => byId(`on-${i}`).addEventListener("change", (event) => {
    now().rows[i - 1].on = event.target.checked;
    set({ scene: null });
  }));
  byId("on-disc").addEventListener("change", (event) => {
    now().disc.on = event.target.checked;
    set({ scene: null });
  });
  for (const option of document.querySelectorAll('input[name="field"]')) {
    option.addEventListener("change", () => set({ field: option.value }));
  }
  byId("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId("program").textContent);
    byId("copy").textContent = "Copied";
    setTimeout(() => { byId("copy").textContent = "Copy"; }, 1500);
  });
}

/** Bring the controls to the state. */
function controls(state, solution) {
  byId("x").value = state.x;
  byId("x-value").textContent = shown(state.x);
  state.rows.forEach((row, i) => { byId(`on-${i + 1}`).checked = row.on; });
  byId("on-disc").checked = state.disc.on;
  for (const option of document.querySelectorAll('input[name="field"]')) option.checked = option.value === state.field;
  for (const button of byId("scenes").children) {
    button.setAttribute("aria-pressed", String(button.textContent === state.scene));
  }
  byId("program").textContent = program(state.raw, solution);
}

/** The numbers beside the picture. */
function readOut(state, { rows, disc, near, closed, indices }) {
  const line = (name, y, reason) => {
    byId(`${name}-y`).textContent = y ? point(y) : reason;
    byId(`${name}-moved`).textContent = y ? shown(norm(sub(y, state.raw))) : "";
    byId(`${name}-in`).textContent = y ? (violation(y, rows, disc) <= TOLERANCE ? "yes" : "no") : "";
  };
  line("raw", state.raw);
  line("near", near?.y, "C(x) is empty");
  line("closed", closed.y, `none: ${closed.reason}`);
  [0, 1, 2].forEach((i) => {
    const k = indices.indexOf(i);
    byId(`dual-${i + 1}`).textContent = k < 0 || !near ? "–" : shown(near.dual[k]);
  });
  byId("dual-disc").textContent = disc && near ? shown(near.dualDisc) : "–";
}

/** The whole picture in a sentence, for those who hear it. */
function sentence(state, { near, closed }) {
  if (!near) return `x is ${state.x.toFixed(2)}. The set is empty: no point satisfies all constraints.`;
  const second = closed.y ? `The closed form is at ${spoken(closed.y)}.` : `No closed form: ${closed.reason}.`;
  return `x is ${state.x.toFixed(2)}, raw is at ${spoken(state.raw)}. The nearest point is ${spoken(near.y)}. ${second}`;
}
