import { ask, exported } from "./api.js";
import { button, fill, h, say, seconds } from "./dom.js";
import { showConsole } from "./console.js";
import { showEpisode } from "./episode.js";
import { showEpisodes } from "./episodes.js";
import { showFaults } from "./faults.js";
import { showGroups } from "./groups.js";
import { helpDialog, listen } from "./keys.js";
import { address, readAddress } from "./lists.js";
import { showOverview, showRuns } from "./runs.js";
import { showTimeline } from "./timeline.js";

// What is shown follows the address; what a run writes meanwhile is followed too.

const POLL = 1500;
const VIEWS = { overview: showOverview, groups: showGroups, episodes: showEpisodes, episode: showEpisode, faults: showFaults, timeline: showTimeline, console: showConsole };
const TITLES = { overview: "Overview", groups: "Groups", episodes: "Episodes", faults: "Faults", timeline: "Timeline", console: "Console" };
const THEMES = ["", "light", "dark"];

const main = document.getElementById("main");
const shown = { runs: [], run: null, route: readAddress(), view: {}, state: null, stamp: null, choices: null, drawn: "" };
let stopping = new AbortController();
let again = 0;
let pressed = false;

async function show(quiet) {
  stopping.abort();
  stopping = new AbortController();
  clearTimeout(again);
  const { signal } = stopping;
  const { hash } = location;
  const route = readAddress();
  const moved = !quiet && (route.view !== shown.route.view || route.run !== shown.route.run || route.params.key !== shown.route.params.key || route.params.page !== shown.route.params.page);
  try {
    if (!shown.runs.length || !route.run || !shown.runs.some((run) => run.name === route.run)) {
      shown.runs = (await ask("runs", {}, signal)).runs;
    }
    if (!route.run && shown.runs.length === 1) return void location.replace(address(shown.runs[0].name, "overview"));
    const run = route.run ? shown.runs.find((each) => each.name === route.run) : null;
    if (route.run && !run) throw new Error(`There is no run ${route.run} here.`);
    if (shown.run !== run) Object.assign(shown, { run, choices: null, state: null, stamp: null });
    shown.route = route;
    // What is drawn is at least as new as this state: whatever comes while it is drawn is seen by the next look at it.
    if (run && !exported) look(await ask(`${run.number}/state`, {}, signal));
    shown.stamp = stampOf(shown.state, route);
    drawTop();
    const draw = !run ? showRuns : Object.hasOwn(VIEWS, route.view) ? VIEWS[route.view] : showOverview;
    const kept = keepPlace();
    shown.view = (await draw(main, route, contextOf(run, signal))) || {};
    if (quiet || !moved) kept();
    if (moved) arrive(route);
    document.title = [route.view && (TITLES[route.view] || "Episode"), run && run.name, "forge-env view"].filter(Boolean).join(" · ");
    main.dataset.place = hash;
    if (shown.view.again) again = setTimeout(() => show(true), 500);
    drawTop();
  } catch (error) {
    if (error.name === "AbortError") return;
    shown.route = route;
    shown.view = {};
    drawTop();
    fill(main, h("p", { class: "empty" }, error.message));
    main.dataset.place = hash;
  }
}

function contextOf(run, signal) {
  return {
    run, signal,
    choices: async () => (shown.choices ||= (await ask(`${run.number}/overview`, {}, signal)).choices),
    empty: (text) => (shown.state && !shown.state.indexed ? "The run is still being read." : text),
  };
}

// The focus and the fold-outs stay where they were when the same view is drawn anew.
function keepPlace() {
  const active = document.activeElement;
  const rows = [...main.querySelectorAll(".row")];
  const row = rows.indexOf(active);
  const href = row >= 0 ? active.getAttribute("href") : null;
  const search = active && active.id === "search" ? active : null;
  const open = [...main.querySelectorAll("details")].map((each) => each.open);
  return () => {
    [...main.querySelectorAll("details")].forEach((each, i) => { if (open[i]) each.open = true; });
    if (search) {
      const box = document.getElementById("search");
      if (box) {
        const typed = search.value; // also what was typed while the answer was on its way
        box.value = typed;
        box.focus();
        box.setSelectionRange(search.selectionStart, search.selectionStart);
        if (typed !== (readAddress().params.q || "")) box.dispatchEvent(new Event("input"));
      }
    } else if (href) {
      const found = [...main.querySelectorAll(".row")].find((each) => each.getAttribute("href") === href);
      if (found) found.focus({ preventScroll: true });
    }
  };
}

function arrive(route) {
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  say(TITLES[route.view] || (route.view === "episode" ? "Episode" : "Runs"));
}

function drawTop() {
  const { run, route, runs, state } = shown;
  const key = JSON.stringify([run && run.name, route.view, runs.length, state && [state.indexed, state.done, state.changed < 10, state.trouble, state.step]]);
  if (key === shown.drawn) return;
  shown.drawn = key;
  const tabs = run ? Object.entries(TITLES).map(([view, text]) => h("a", {
    href: address(run.name, view), "aria-current": (route.view || "overview") === view || (view === "episodes" && route.view === "episode") ? "page" : null,
  }, text)) : [];
  fill(document.getElementById("top"),
    h("div", { class: "brand" }, h("a", { href: "#/" }, "forge-env"), run ? h("span", { class: "crumb" }, run.name) : null),
    h("nav", { class: "views", "aria-label": "Views" }, tabs),
    h("div", { class: "tools" }, stateMark(), button("◐", nextTheme, { class: "quiet", "aria-label": "Light or dark", title: "Light or dark (d)" }),
      button("?", () => helpDialog().showModal(), { class: "quiet", "aria-label": "Keys", title: "Keys (?)" })));
}

function stateMark() {
  const { state } = shown;
  if (exported) return h("span", { class: "mark none", title: "This file needs no server; it holds the most telling episodes" }, `exported: ${exported.note}`);
  if (!state) return null;
  if (state.lost) return h("span", { class: "mark fault", role: "status" }, "no connection");
  if (state.trouble) return h("span", { class: "mark fault", title: state.trouble }, "index broken");
  if (!state.indexed) {
    const share = state.total ? Math.floor((state.done / state.total) * 100) : 0;
    return h("span", { class: "mark some", role: "status" }, `reading ${share} %`);
  }
  if (state.changed !== null && state.changed < 10) return h("span", { class: "mark good live" }, "live");
  return h("span", { class: "dim small" }, state.changed === null ? "" : `written ${seconds(state.changed)} ago`);
}

function look(state) {
  if (stampOf(state) !== stampOf(shown.state)) shown.choices = null;
  shown.state = state;
}

// What has to change for a view to be drawn anew.
function stampOf(state, route) {
  return state && JSON.stringify([state.stamp, state.step, state.indexed, route && route.view === "console" ? state.said : 0]);
}

async function poll() {
  const { run } = shown;
  if (run && !exported && !document.hidden) {
    try {
      const state = await ask(`${run.number}/state`, {});
      if (run === shown.run) {
        look(state);
        drawTop();
        if (stampOf(state, shown.route) !== shown.stamp && !shown.view.fixed && !busy()) await show(true);
      }
    } catch (error) {
      shown.state = { ...(shown.state || {}), lost: true };
      drawTop();
    }
  } else if (!shown.run && !exported && !document.hidden && !busy()) {
    shown.runs = [];
    await show(true);
  }
  setTimeout(poll, shown.state && !shown.state.indexed ? 400 : POLL);
}

// Nothing is drawn anew under the hands of somebody who chooses, types or drags.
function busy() {
  const active = document.activeElement;
  return pressed || Boolean(active && active.matches && active.matches("#main select, #main input[type=text]")) || Boolean(getSelection && String(getSelection()));
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
    // a browser that keeps nothing
  }
  say(theme ? `${theme} theme` : "the system's theme");
}

function start() {
  try {
    const theme = localStorage.getItem("forge-env-theme");
    if (THEMES.includes(theme)) setTheme(theme);
  } catch {
    // a browser that keeps nothing
  }
  if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the key is in a cookie by now
  helpDialog();
  // The address, and not what is drawn: the next key may come before the view of the last one.
  listen(() => ({ route: readAddress(), run: shown.run, view: shown.view, theme: nextTheme }));
  addEventListener("hashchange", () => show(false));
  for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) addEventListener(name, (event) => { pressed = event.buttons > 0; });
  show(false).then(() => setTimeout(poll, 300));
}

start();
