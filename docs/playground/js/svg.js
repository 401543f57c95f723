/** Small helpers for drawing with SVG: elements, paths, and a frame that maps numbers to the picture. */

const NAMESPACE = "http://www.w3.org/2000/svg";
/** How much larger marks and their names are drawn where the picture is shown small. */
const LARGEST = 2;

/** A new SVG element with attributes, inside a parent. */
export function element(parent, tag, attributes = {}) {
  const made = document.createElementNS(NAMESPACE, tag);
  change(made, attributes);
  parent.append(made);
  return made;
}

/** Set attributes; null takes one away. */
export function change(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) target.removeAttribute(name);
    else target.setAttribute(name, value);
  }
}

/** Show an element or hide it; what is hidden cannot be focused. */
export function show(target, visible) {
  change(target, { display: visible ? null : "none" });
}

/**
 * A frame from [left, right] x [bottom, top] to an SVG of this width and height.
 *
 * `to` maps a point to the picture, `from` a pointer event back, `path` joins points with lines, and `put` places what
 * must stay large enough for a finger, however small the picture is.
 */
export function frame(svg, [left, right], [bottom, top], width, height) {
  change(svg, { viewBox: `0 0 ${width} ${height}` });
  const scale = [width / (right - left), height / (top - bottom)];
  const to = ([u, v]) => [(u - left) * scale[0], (top - v) * scale[1]];
  const zoom = () => Math.min(LARGEST, Math.max(1, width / (svg.clientWidth || width)));
  return {
    scale,
    to,
    put: (point) => `translate(${digits(to(point))}) scale(${zoom().toFixed(3)})`,
    from(event) {
      const seen = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return [left + seen.x / scale[0], top - seen.y / scale[1]];
    },
    path: (points) => points.map((point, k) => (k ? "L" : "M") + digits(to(point))).join(""),
    inside: ([u, v]) => [Math.min(right, Math.max(left, u)), Math.min(top, Math.max(bottom, v))],
  };
}

const digits = ([u, v]) => `${u.toFixed(2)} ${v.toFixed(2)}`;

/** An arrow from one point of the picture to another, with a head of this size. */
export function arrow(from, to, head = 7) {
  const way = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(...way);
  if (length < 0.5) return "";
  const size = Math.min(head, 0.6 * length) / length;
  const side = (sign) => [
    to[0] - size * (way[0] + sign * 0.55 * way[1]),
    to[1] - size * (way[1] - sign * 0.55 * way[0]),
  ];
  return `M${digits(from)}L${digits(to)}M${digits(side(1))}L${digits(to)}L${digits(side(-1))}`;
}
