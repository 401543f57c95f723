/** Points that can be moved by mouse, finger, pen and keyboard. */

import { change, element, show } from "./svg.js";

const STEP = 0.1;
const FINE = 0.01;
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/**
 * Make one handle.
 *
 * @param layer    the SVG group it stands in
 * @param frame    maps numbers to the picture and back
 * @param spec     id, label, kind (a class of style.css), at() -> point, visible(), move(point), and for handles that
 *                 turn or resize nudge(sign, step); say() is what a screen reader hears as the value
 * @param changed  called after each move
 * @returns {() => void} draws the handle where it belongs
 */
export function handle(layer, frame, spec, changed) {
  const group = element(layer, "g", { id: spec.id, class: `handle ${spec.kind}`, tabindex: 0, role: "slider" });
  change(group, { "aria-label": spec.label, "aria-roledescription": "movable point" });
  element(group, "circle", { class: "reach", r: 22 });
  element(group, "circle", { class: "halo", r: 15 });
  element(group, "path", { class: "mark", d: spec.mark });
  const text = element(group, "text", { class: "name", x: 13, y: -11, "aria-hidden": "true" });
  text.textContent = spec.name ?? "";

  const move = (point) => {
    spec.move(frame.inside(point));
    changed();
  };
  followPointer(group, frame, spec, move);
  followKeys(group, spec, move, changed);
  return () => {
    show(group, spec.visible());
    if (!spec.visible()) return;
    const point = spec.at();
    change(group, {
      transform: frame.put(point),
      "aria-valuenow": point[0].toFixed(2),
      "aria-valuetext": spec.say(),
    });
  };
}

/** Drag, keeping the distance between the pointer and the point that was held. */
function followPointer(group, frame, spec, move) {
  let grip = null;
  group.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const [point, held] = [frame.from(event), spec.at()];
    grip = [held[0] - point[0], held[1] - point[1]];
    group.setPointerCapture(event.pointerId);
    group.focus({ preventScroll: true });
    event.preventDefault();
  });
  const follow = (event) => {
    if (!grip) return;
    const point = frame.from(event);
    move([point[0] + grip[0], point[1] + grip[1]]);
  };
  group.addEventListener("pointermove", follow);
  group.addEventListener("pointerup", follow); // a quick finger is lifted where no move was reported
  // touch-action does not reach parts of an SVG; a finger on a handle must not scroll the page
  group.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    group.addEventListener(end, () => { grip = null; });
  }
}

/** Arrow keys move, turn or resize; with Shift in small steps. */
function followKeys(group, spec, move, changed) {
  group.addEventListener("keydown", (event) => {
    const way = KEYS[event.key];
    if (!way || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const step = event.shiftKey ? FINE : STEP;
    if (spec.nudge) {
      spec.nudge(way[0] + way[1], step);
      changed();
      return;
    }
    const [u, v] = spec.at();
    move([u + step * way[0], v + step * way[1]]);
  });
}

/** Marks of handles, centered at the origin. */
export const MARKS = {
  disc: "M-7 0a7 7 0 1 0 14 0a7 7 0 1 0 -14 0",
  small: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0",
  diamond: "M0 -8L8 0L0 8L-8 0Z",
  square: "M-5 -5H5V5H-5Z",
  plus: "M-8 0H8M0 -8V8",
  triangle: "M0 -7L6 5H-6Z",
};
