/** Starts the page: its tabs, the plane at once, the trained models when their tab is first opened. */

import { explore } from "./explore.js";
import { trained } from "./trained.js";

const tabs = [...document.querySelectorAll('[role="tab"]')];
let models = null;

/** Show one tab; the runtime of the models is fetched only by those who want to see them. */
function choose(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  if (tab.id === "tab-trained") models ??= trained();
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => {
    choose(tab);
    history.replaceState(null, "", tab.id === "tab-trained" ? "#trained" : "#");
  });
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    choose(tabs[(i + 1) % tabs.length], true);
  });
});

document.documentElement.classList.add("ready");
/** For tests and the curious: `playground.plane.state()`, `playground.plane.set({...})`, `await playground.models()`. */
window.playground = { plane: explore(), models: () => models };
choose(location.hash === "#trained" ? tabs[1] : tabs[0]);
