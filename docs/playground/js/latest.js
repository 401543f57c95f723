/** Runs an asynchronous task again and again, never twice at once; calls in between are answered by one more run. */
export function latest(task) {
  let running = null;
  let again = false;
  return function call() {
    if (running) {
      again = true;
      return running;
    }
    running = (async () => {
      do {
        again = false;
        await task();
      } while (again);
    })().finally(() => { running = null; });
    return running;
  };
}

/** Short text of a violation or a rounding: 0, 2.1e-7, 0.034, 12.3. */
export function brief(value) {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return "not finite";
  return Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5 ? value.toExponential(1).replace("-", "−") : minus(value.toPrecision(3));
}

/** With the sign that is as wide as a digit. */
export const minus = (text) => String(text).replace("-", "−");

/** Say below a table whether a constraint holds. */
export function verdict(target, holds, text) {
  target.textContent = text;
  target.className = `verdict ${holds ? "holds" : "broken"}`;
}
