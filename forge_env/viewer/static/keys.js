import { fill, h, button } from "./dom.js";
import { address, listOf, moveRow, setParams, turnPage } from "./lists.js";
import { SHADES } from "./tokens.js";

// The keys.

const KEYS = [
  ["j  k", "next, previous row; in an episode the next, previous message"], ["Enter", "open the row"], ["Esc", "back, or leave a field"],
  ["n  p", "next, previous page; in an episode the next, previous one"], ["/", "search"], ["s", "another shading of tokens"],
  ["t", "conversation or tokens"], ["← →", "along the tokens, once they have the focus"], ["+ −", "closer, farther in the timeline"],
  ["g r", "runs"], ["g o", "overview of the run"], ["g g", "groups"], ["g e", "episodes"], ["g f", "faults"], ["g t", "timeline"], ["g c", "console"],
  ["d", "light, dark or as the system has it"], ["?", "this list"],
];
const VIEWS_OF_KEYS = { o: "overview", g: "groups", e: "episodes", f: "faults", t: "timeline", c: "console" };

export function helpDialog() {
  const dialog = document.getElementById("help");
  fill(dialog, h("h2", { id: "help-title" }, "Keys"), h("dl", { class: "keys" }, KEYS.map(([keys, text]) => [
    h("dt", null, keys.split("  ").map((key) => h("kbd", null, key))), h("dd", null, text)])),
  button("Close", () => dialog.close()));
  return dialog;
}

// state() tells the route, what the view gave back, and how to change the theme.
export function listen(state) {
  let waiting = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const dialog = document.getElementById("help");
    const typing = event.target.closest && event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape" && typing) return void event.target.blur();
    if (typing || dialog.open) return;
    const went = waiting;
    waiting = false;
    if (went && (event.key === "r" || VIEWS_OF_KEYS[event.key])) {
      event.preventDefault();
      const run = state().run;
      if (event.key === "r") location.hash = "#/";
      else if (run) location.hash = address(run.name, VIEWS_OF_KEYS[event.key]);
      return;
    }
    if (act(event.key, state(), dialog)) event.preventDefault();
    else if (event.key === "g") waiting = true;
  });
}

function act(key, { route, view, theme }, dialog) {
  const { record, shade, zoom, move } = view || {};
  if (key === "?") return dialog.showModal(), true;
  if (key === "/") return toSearch(route);
  if (key === "d") return theme(), true;
  if (key === "Escape") return back(route);
  if (key === "j" || key === "ArrowDown" && !record) return record ? moveMessage(1) : moveRow(1);
  if (key === "k" || key === "ArrowUp" && !record) return record ? moveMessage(-1) : moveRow(-1);
  if (key === "n" || key === "p") return record ? neighbour(route, key === "n" ? record.next : record.previous) : (turnPage(key === "n" ? 1 : -1), true);
  if (key === "s" && record) return nextShade(route, shade);
  if (key === "t" && record) return setParams(route, { tab: route.params.tab === "tokens" ? "" : "tokens" }), true;
  if (zoom && (key === "+" || key === "-")) return zoom(key === "+" ? 0.5 : 2), true;
  if (move && (key === "ArrowLeft" || key === "ArrowRight")) return move(key === "ArrowLeft" ? -0.5 : 0.5), true;
  return false;
}

function toSearch(route) {
  const box = document.getElementById("search");
  if (box) box.focus();
  else if (route.run) location.hash = address(route.run, "episodes");
  return true;
}

function back(route) {
  if (route.view === "episode") history.length > 1 ? history.back() : (location.hash = address(route.run, "episodes", listOf(route.params)));
  else if (route.view && route.view !== "overview") location.hash = address(route.run, "overview");
  else location.hash = "#/";
  return true;
}

function neighbour(route, key) {
  if (key) setParams(route, { key });
  return true;
}

function nextShade(route, shade) {
  const names = Object.keys(SHADES);
  if (names.includes(route.params.shade)) shade = route.params.shade;
  setParams(route, { shade: names[(names.indexOf(shade) + 1) % names.length] });
  return true;
}

function moveMessage(step) {
  const messages = [...document.querySelectorAll(".talk .message, .token-row")];
  if (!messages.length) return false;
  const now = messages.indexOf(document.activeElement);
  const next = messages[Math.max(0, Math.min(messages.length - 1, now + step))];
  next.tabIndex = -1;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
  return true;
}
