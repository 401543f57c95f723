/** The same numbers as a program for the library. */

const number = (value) => String(Number(value.toPrecision(10)));
const list = (values) => `[${values.map(number).join(", ")}]`;
const tensor = (content) => `torch.tensor(${content}, dtype=torch.float64)`;

/** Python that prints what the page shows. */
export function program(raw, { rows, disc, closed }) {
  const lines = ["import torch", "import hardnet as hn", ""];
  lines.push(`raw = ${tensor(list(raw))}`);
  const parts = [];
  if (rows.length) {
    lines.push(`A = ${tensor(`[${rows.map((row) => list(row.a)).join(", ")}]`)}`);
    lines.push(`b = ${tensor(list(rows.map((row) => row.b)))}`);
    parts.push("hn.Affine(A, upper=b)");
  }
  if (disc) parts.push(`hn.Ball(${tensor(list(disc.c))}, ${number(disc.r)})`);
  if (!parts.length) return [...lines, "nearest = raw  # nothing is forbidden"].join("\n");
  lines.push(`C = ${parts.join(" & ")}`);
  lines.push(`nearest = hn.HardNet(torch.nn.Identity(), C, method="${disc ? "cvx" : "projection"}")(raw)`);
  if (closed.y) lines.push("closed_form = hn.functional.enforce_affine(raw, A, upper=b)");
  return lines.join("\n");
}
