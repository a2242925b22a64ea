import { OUTCOMES, h } from "./dom.js";

// Addresses of the page, and what all lists share: pages of rows, filters, a row that the keys move.

export const PAGE = 50;

export function address(run, view, params) {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== "" && value != null));
  const text = query.toString();
  return `#/${encodeURIComponent(run)}${view ? `/${view}` : ""}${text ? `?${text}` : ""}`;
}

export function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [run, view] = path.split("/");
  let name = "";
  try {
    name = decodeURIComponent(run || "");
  } catch {
    name = run; // not of our making
  }
  return { run: name, view: view || "", params: Object.fromEntries(new URLSearchParams(query || "")) };
}

// What of an address says which episodes are listed, and in which order.
const LISTED = ["phase", "outcome", "env", "group", "task", "step", "version", "reward_from", "reward_to", "fault", "error", "tool", "has", "id", "q", "order"];

export function listOf(params) {
  return Object.fromEntries(LISTED.filter((name) => params[name]).map((name) => [name, params[name]]));
}

// The same place with other parameters; what is empty is left out.
export function withParams(route, changes) {
  return address(route.run, route.view, { ...route.params, ...changes });
}

export function setParams(route, changes) {
  location.hash = withParams(route, changes);
}

export function pager(route, total) {
  const page = Number(route.params.page || 0);
  const pages = Math.max(1, Math.ceil(total / PAGE));
  if (pages === 1) return null;
  const to = (n, text, label) => (n < 0 || n >= pages || n === page
    ? h("span", { class: "page off", "aria-hidden": "true" }, text)
    : h("a", { class: "page", href: withParams(route, { page: n || "" }), "aria-label": label }, text));
  return h("nav", { class: "pager", "aria-label": "Pages" },
    to(0, "«", "First page"), to(page - 1, "‹ Previous", "Previous page"),
    h("span", null, `${(page + 1).toLocaleString("en")} of ${pages.toLocaleString("en")}`),
    to(page + 1, "Next ›", "Next page"), to(pages - 1, "»", "Last page"));
}

export function pageParams(route) {
  return { ...route.params, offset: String(Number(route.params.page || 0) * PAGE), limit: String(PAGE) };
}

export function select(label, value, options, act) {
  const made = h("select", { "aria-label": label, on: { change: () => act(made.value) } },
    options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value ?? "") }, text)));
  return h("label", { class: "field" }, h("span", null, label), made);
}

export function input(label, value, act, props) {
  const made = h("input", { type: "text", value: value || "", "aria-label": label, autocomplete: "off", spellcheck: "false", ...props });
  made.addEventListener("change", () => act(made.value.trim()));
  return h("label", { class: "field" }, h("span", null, label), made);
}

// The filters of episodes and groups. What is set shows in the address.
export function filterBar(route, choices, orders) {
  const set = (name) => (value) => setParams(route, { [name]: value, page: "" });
  const p = route.params;
  const any = (values) => [["", "any"], ...values.map((value) => [value, value])];
  const phases = choices.phases.map((each) => [each.phase, `${each.phase} (${each.episodes.toLocaleString("en")})`]);
  const basic = [
    h("label", { class: "field wide" }, h("span", null, "Text"), searchBox(route)),
    phases.length > 1 ? select("Phase", p.phase, [["", "all"], ...phases], set("phase")) : null,
    select("Order", p.order || orders[0][0], orders, (value) => set("order")(value === orders[0][0] ? "" : value)),
    select("Only", p.has, [["", "all"], ["success", "successes"], ["failure", "failures"], ["fault", "faults of ours and time-outs"],
      ["tool_error", "tool errors"], ["tools", "with tools"], ["no_tools", "without tools"]], set("has")),
  ];
  const more = [
    select("Outcome", p.outcome, [["", "any"], ...choices.outcomes.map((value) => [value, OUTCOMES[value] || value])], set("outcome")),
    choices.tools.length ? select("Tool", p.tool, any(choices.tools), set("tool")) : null,
    choices.envs.length > 1 ? select("Environment", p.env, any(choices.envs), set("env")) : null,
    input("Reward from", p.reward_from, set("reward_from"), { class: "short" }),
    input("to", p.reward_to, set("reward_to"), { class: "short" }),
    choices.steps[0] !== null ? input(`Step ${choices.steps[0]}–${choices.steps[1]}`, p.step, set("step"), { class: "short" }) : null,
    choices.versions[0] !== null ? input(`Version ${choices.versions[0]}–${choices.versions[1]}`, p.version, set("version"), { class: "short" }) : null,
    input("Id contains", p.id, set("id")),
  ];
  const names = ["outcome", "tool", "env", "reward_from", "reward_to", "step", "version", "id"];
  const used = names.filter((name) => p[name]);
  const hidden = ["group", "task", "fault", "error"].filter((name) => p[name]);
  const all = [...used, ...hidden, ...["q", "phase", "has"].filter((name) => p[name])];
  return h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
    h("div", { class: "fields" }, basic),
    h("details", { open: used.length > 0 }, h("summary", null, used.length ? `More filters (${used.length} set)` : "More filters"),
      h("div", { class: "fields" }, more)),
    h("div", { class: "chips" },
      hidden.map((name) => h("a", { class: "chip", href: withParams(route, { [name]: "", page: "" }), title: "Take this filter away" }, `${name}: ${p[name]} ×`)),
      all.length > 1 ? h("a", { class: "chip", href: address(route.run, route.view, {}) }, "Clear all filters ×") : null));
}

function searchBox(route) {
  const box = h("input", { type: "search", id: "search", value: route.params.q || "", placeholder: "in tasks, answers, tool output ( / )",
    "aria-label": "Text in tasks, answers and tool output", autocomplete: "off", spellcheck: "false" });
  let waiting = 0;
  const act = () => {
    clearTimeout(waiting);
    const now = readAddress();
    if (box.isConnected && box.value !== (now.params.q || "")) setParams(now, { q: box.value, page: "" });
  };
  box.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(act, 350);
  });
  box.addEventListener("change", act);
  return box;
}

// j and k move along the rows of a list; Enter follows the link of the row.
export function moveRow(step) {
  const rows = [...document.querySelectorAll("#main .row")];
  if (!rows.length) return false;
  const now = rows.indexOf(document.activeElement);
  const next = now < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, now + step));
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
  return true;
}

export function turnPage(step) {
  const link = [...document.querySelectorAll(".pager a")].find((each) => each.getAttribute("aria-label") === (step > 0 ? "Next page" : "Previous page"));
  if (link) location.hash = link.getAttribute("href");
}

export function searchNote(page) {
  if (!page.search) return null;
  const { share, ended, found } = page.search;
  if (!ended) return h("p", { class: "note" }, `Searching: ${Math.round(share * 100)} %, ${found} found so far.`);
  return found >= 5000 ? h("p", { class: "note" }, "The first 5,000 that hold this text.") : null;
}

