import { LISTS, address, readAddress } from "./address.js";
import { request } from "./api.js";
import { showComparison, showPair } from "./compare.js";
import { showConsole } from "./console.js";
import { announce, button, fill, h } from "./dom.js";
import { showEpisode } from "./episode.js";
import { showEpisodes } from "./episodes.js";
import { exported } from "./exported.js";
import { showFaults } from "./faults.js";
import { showGroups } from "./groups.js";
import { helpDialog, listenToKeys } from "./keys.js";
import { showLive } from "./live.js";
import { seconds } from "./numbers.js";
import { showOverview } from "./overview.js";
import { requestReport } from "./report.js";
import { showRuns } from "./runs.js";
import { showTimeline } from "./timeline.js";

// Draws the view that the address names, and redraws it when the run has written something.

const POLL_MS = 1500;
const POLL_WHILE_INDEXING_MS = 400;
const REDRAW_WHILE_SEARCHING_MS = 500;
const VIEWS = {
  overview: showOverview, groups: showGroups, episodes: showEpisodes, episode: showEpisode, faults: showFaults,
  timeline: showTimeline, console: showConsole, live: showLive, compare: showComparison, pair: showPair,
};
const TITLES = {
  overview: "Overview", groups: "Groups", episodes: "Episodes", faults: "Faults", timeline: "Timeline",
  console: "Console", live: "Live", ...(exported ? {} : { compare: "Compare" }),
};
const THEMES = ["", "light", "dark"];

const main = document.getElementById("main");
const shown = {
  runs: [], run: null, route: readAddress(),
  view: {}, // what the function of the view returned
  state: null, // of the run, from the server
  stamp: null, choices: null, header: "",
  report: null, // of the run when the view was opened: it is too much for every redraw
};
let drawing = new AbortController();
let redrawTimer = 0;
let isPointerDown = false;

async function show(isRedraw) {
  drawing.abort();
  drawing = new AbortController();
  clearTimeout(redrawTimer);
  const { signal } = drawing;
  const { hash } = location;
  const route = readAddress();
  const isNewPlace = !isRedraw && isElsewhere(route, shown.route);
  try {
    if (!shown.runs.some((run) => run.name === route.run)) shown.runs = (await request("runs", {}, signal)).runs;
    if (!route.run && shown.runs.length === 1) return void location.replace(address(shown.runs[0].name, "overview"));
    const run = route.run ? shown.runs.find(({ name }) => name === route.run) : null;
    if (route.run && !run) throw new Error(`There is no run ${route.run} here.`);
    if (shown.run !== run) Object.assign(shown, { run, choices: null, state: null, stamp: null });
    if (isNewPlace || shown.report?.indexed !== shown.state?.indexed) shown.report = null;
    shown.route = route;
    // The state is requested before the view is drawn, so a change during the drawing is noticed by the next poll.
    if (run && !exported) keepState(await request(`${run.number}/state`, {}, signal));
    shown.stamp = stampOf(shown.state, route);
    drawHeader();
    const draw = !run ? showRuns : Object.hasOwn(VIEWS, route.view) ? VIEWS[route.view] : showOverview;
    const restore = keepFocusAndFolds();
    shown.view = (await draw(main, route, contextOf(run, signal))) || {};
    if (isNewPlace) announcePlace(route);
    else restore();
    const title = route.view && (TITLES[route.view] || "Episode");
    document.title = [title, run && run.name, "forge-env view"].filter(Boolean).join(" · ");
    main.dataset.place = hash;
    if (shown.view.again) redrawTimer = setTimeout(() => show(true), REDRAW_WHILE_SEARCHING_MS);
    drawHeader();
  } catch (error) {
    if (error.name === "AbortError") return;
    shown.route = route;
    shown.view = {};
    if (error.isLost) shown.stamp = null; // the next answer of the server redraws it
    drawHeader();
    fill(main, h("p", { class: "empty" }, error.message));
    main.dataset.place = hash;
  }
}

function isElsewhere(a, b) {
  return a.view !== b.view || a.run !== b.run || a.params.key !== b.params.key || a.params.page !== b.params.page;
}

// What a view gets: the run, the signal that ends its requests, the choices of the filters, the text of an empty list.
function contextOf(run, signal) {
  return {
    run, signal, runs: shown.runs,
    choices: async () => (shown.choices ||= (await request(`${run.number}/overview`, {}, signal)).choices),
    report: async () => (shown.report ||= { ...await requestReport(run, signal), indexed: shown.state?.indexed }),
    empty: (text) => (shown.state && !shown.state.indexed ? "The run is still being read." : text),
  };
}

// Returns a function that restores the focus and the open folds after a redraw of the same view.
function keepFocusAndFolds() {
  const active = document.activeElement;
  const row = [...main.querySelectorAll(".row")].find((element) => element === active);
  const href = row ? row.getAttribute("href") : null;
  const search = active && active.id === "search" ? active : null;
  const folds = [...main.querySelectorAll("details")].map((details) => details.open);
  return () => {
    [...main.querySelectorAll("details")].forEach((details, i) => { if (folds[i]) details.open = true; });
    if (search) restoreSearch(search);
    if (!href) return;
    const same = [...main.querySelectorAll(".row")].find((element) => element.getAttribute("href") === href);
    if (same) same.focus({ preventScroll: true });
  };
}

function restoreSearch(old) {
  const box = document.getElementById("search");
  if (!box) return;
  if (old.value !== old.dataset.sent) box.value = old.value; // typed while the answer was on its way
  box.focus();
  box.setSelectionRange(old.selectionStart, old.selectionStart);
  if (box.value !== (readAddress().params.q || "")) box.dispatchEvent(new Event("input"));
}

function announcePlace(route) {
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  announce(TITLES[route.view] || (LISTS[route.view] ? "Episode" : "Runs"));
}

function drawHeader() {
  const { run, route, runs, state } = shown;
  const shownOfState = state && [state.indexed, state.done, isLive(state), state.index_error, state.step];
  const key = JSON.stringify([run && run.name, route.view, runs.length, shownOfState]);
  if (key === shown.header) return;
  shown.header = key;
  const currentTab = LISTS[route.view] || route.view || "overview";
  const titles = Object.entries(TITLES).filter(([view]) => view !== "live" || view === route.view || (state && state.goes_on));
  const tabs = run ? titles.map(([view, text]) => h("a", {
    href: address(run.name, view), "aria-current": view === currentTab ? "page" : null,
  }, text)) : [];
  const theme = { class: "quiet", "aria-label": "Light or dark", title: "Light or dark (d)" };
  fill(document.getElementById("top"),
    h("div", { class: "brand" },
      h("a", { href: "#/" }, "forge-env"), run ? h("span", { class: "crumb" }, run.name) : null),
    h("nav", { class: "views", "aria-label": "Views" }, tabs),
    h("div", { class: "tools" }, stateMark(), button("◐", nextTheme, theme),
      button("?", () => helpDialog().showModal(), { class: "quiet", "aria-label": "Keys", title: "Keys (?)" })));
}

function stateMark() {
  const { state } = shown;
  const mark = (kind, text, props) => h("span", { class: `mark ${kind}`, ...props }, text);
  if (exported) {
    const title = "This file needs no server; it holds the most informative episodes";
    return mark("none", `exported: ${exported.note}`, { title });
  }
  if (!state) return null;
  if (state.lost) return mark("fault", "no connection", { role: "status" });
  if (state.index_error) return mark("fault", "index error", { title: state.index_error });
  if (!state.indexed) {
    const percent = state.total ? Math.floor((state.done / state.total) * 100) : 0;
    return mark("some", `reading ${percent} %`, { role: "status" });
  }
  if (state.changed === null) return null;
  if (isLive(state)) return mark("good live", "live");
  return h("span", { class: "dim small" }, `written ${seconds(state.changed)} ago`);
}

// A training run says itself that it goes on; an evaluation writes.
function isLive(state) {
  return state.goes_on || (state.changed !== null && state.changed < 10);
}

function keepState(state) {
  if (stampOf(state) !== stampOf(shown.state)) shown.choices = null;
  shown.state = state;
}

// A view is redrawn when its stamp changes.
function stampOf(state, route) {
  const consoleBytes = route && route.view === "console" ? state && state.console_bytes : 0;
  const now = route && route.view === "live" ? Date.now() : 0;
  return state && JSON.stringify([state.stamp, state.step, state.indexed, consoleBytes, now]);
}

async function poll() {
  const { run } = shown;
  if (run && !exported && !document.hidden) {
    try {
      const state = await request(`${run.number}/state`, {});
      if (run === shown.run) {
        keepState(state);
        drawHeader();
        if (stampOf(state, shown.route) !== shown.stamp && !shown.view.fixed && !isBusy()) await show(true);
      }
    } catch (error) {
      shown.state = { ...(shown.state || {}), lost: true };
      drawHeader();
    }
  } else if (!shown.run && !exported && !document.hidden && !isBusy()) {
    shown.runs = [];
    await show(true);
  }
  setTimeout(poll, shown.state && !shown.state.indexed ? POLL_WHILE_INDEXING_MS : POLL_MS);
}

// Nothing is redrawn while the user chooses, types, drags or has selected text.
function isBusy() {
  const active = document.activeElement;
  const isInField = active && active.matches && active.matches("#main select, #main input[type=text]");
  return isPointerDown || Boolean(isInField) || Boolean(getSelection && String(getSelection()));
}

function nextTheme() {
  const now = document.documentElement.dataset.theme || "";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("forge-env-theme", theme);
  } catch {
    // the browser stores nothing
  }
  announce(theme ? `${theme} theme` : "the system's theme");
}

function start() {
  try {
    const theme = localStorage.getItem("forge-env-theme");
    if (THEMES.includes(theme)) setTheme(theme);
  } catch {
    // the browser stores nothing
  }
  // The token of the first address is in a cookie now.
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  helpDialog();
  // The route is that of the address: a key may be pressed before the view of the last address is drawn.
  listenToKeys(() => ({ route: readAddress(), run: shown.run, view: shown.view, nextTheme }));
  addEventListener("hashchange", () => show(false));
  for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
    addEventListener(name, (event) => { isPointerDown = event.buttons > 0; });
  }
  show(false).then(() => setTimeout(poll, 300));
}

start();
