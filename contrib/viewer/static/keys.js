import { LISTS, address, listParams, setParams } from "./address.js";
import { button, fill, h } from "./dom.js";
import { moveRow, turnPage } from "./lists.js";
import { SHADES } from "./tokens.js";

// The keyboard shortcuts.

const KEYS = [
  ["j  k", "next, previous row; in an episode the next, previous message"],
  ["Enter", "open the row"],
  ["Esc", "back, or leave a field"],
  ["n  p", "next, previous page; in an episode the next, previous episode of the list"],
  ["/", "search"],
  ["s", "next shading of the tokens"],
  ["t", "conversation or tokens"],
  ["← →", "along the tokens when they have the focus; along the timeline"],
  ["+ −", "zoom the timeline"],
  ["g r", "runs"], ["g o", "overview of the run"], ["g g", "groups"], ["g e", "episodes"], ["g f", "faults"],
  ["g t", "timeline"], ["g c", "console"], ["g m", "compare"], ["g l", "live"],
  ["d", "light, dark or the system's theme"],
  ["?", "this list"],
];
const VIEWS_BY_KEY = {
  o: "overview", g: "groups", e: "episodes", f: "faults", t: "timeline", c: "console", m: "compare", l: "live",
};

export function helpDialog() {
  const dialog = document.getElementById("help");
  const entries = KEYS.map(([keys, text]) => [
    h("dt", null, keys.split("  ").map((key) => h("kbd", null, key))), h("dd", null, text),
  ]);
  fill(dialog, h("h2", { id: "help-title" }, "Keys"), h("dl", { class: "keys" }, entries),
    button("Close", () => dialog.close()));
  return dialog;
}

// getState() returns the route, the run, what the view returned, and a function that changes the theme.
export function listenToKeys(getState) {
  let isAfterG = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const dialog = document.getElementById("help");
    const field = event.target.closest && event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape" && field) return void event.target.blur();
    if (field || dialog.open) return;
    const wasAfterG = isAfterG;
    isAfterG = false;
    if (wasAfterG && (event.key === "r" || VIEWS_BY_KEY[event.key])) {
      event.preventDefault();
      const { run } = getState();
      if (event.key === "r") location.hash = "#/";
      else if (run) location.hash = address(run.name, VIEWS_BY_KEY[event.key]);
      return;
    }
    if (pressKey(event.key, getState(), dialog)) event.preventDefault();
    else if (event.key === "g") isAfterG = true;
  });
}

// Returns whether the key has a meaning in the view.
function pressKey(key, { route, view, nextTheme }, dialog) {
  const { detail, shade, zoom, move } = view || {};
  if (key === "?") return dialog.showModal(), true;
  if (key === "/") return focusSearch(route);
  if (key === "d") return nextTheme(), true;
  if (key === "Escape") return goBack(route);
  if (key === "j" || (key === "ArrowDown" && !detail)) return detail ? moveMessage(1) : moveRow(1);
  if (key === "k" || (key === "ArrowUp" && !detail)) return detail ? moveMessage(-1) : moveRow(-1);
  if (key === "n") return detail ? openEpisode(route, detail.next) : (turnPage(1), true);
  if (key === "p") return detail ? openEpisode(route, detail.previous) : (turnPage(-1), true);
  if (key === "s" && detail) return nextShade(route, shade);
  if (key === "t" && detail) return setParams(route, { tab: route.params.tab === "tokens" ? "" : "tokens" }), true;
  if (zoom && (key === "+" || key === "-")) return zoom(key === "+" ? 0.5 : 2), true;
  if (move && (key === "ArrowLeft" || key === "ArrowRight")) return move(key === "ArrowLeft" ? -0.5 : 0.5), true;
  return false;
}

function focusSearch(route) {
  const box = document.getElementById("search");
  if (box) box.focus();
  else if (route.run) location.hash = address(route.run, "episodes");
  return true;
}

function goBack(route) {
  if (LISTS[route.view] && history.length > 1) history.back();
  else if (route.view === "episode") location.hash = address(route.run, "episodes", listParams(route.params));
  else if (route.view && route.view !== "overview") location.hash = address(route.run, "overview");
  else location.hash = "#/";
  return true;
}

function openEpisode(route, key) {
  if (key) setParams(route, { key });
  return true;
}

function nextShade(route, shade) {
  const names = Object.keys(SHADES);
  const current = names.includes(route.params.shade) ? route.params.shade : shade;
  setParams(route, { shade: names[(names.indexOf(current) + 1) % names.length] });
  return true;
}

function moveMessage(step) {
  const messages = [...document.querySelectorAll(".conversation .message, .token-row")];
  if (!messages.length) return false;
  const now = messages.indexOf(document.activeElement);
  const next = messages[Math.max(0, Math.min(messages.length - 1, now + step))];
  next.tabIndex = -1;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  return true;
}
