import { address, readAddress, setParams, withParams } from "./address.js";
import { OUTCOMES, h } from "./dom.js";

// What the lists of episodes and groups share: pages of rows, filters, and the row that keys move.

const PAGE_ROWS = 50;
const MAX_MATCHES = 5000; // of the server's search
const SEARCH_DELAY_MS = 350; // after the last key

export function pageParams(route) {
  return { ...route.params, offset: String(Number(route.params.page || 0) * PAGE_ROWS), limit: String(PAGE_ROWS) };
}

export function pager(route, total) {
  const page = Number(route.params.page || 0);
  const pages = Math.max(1, Math.ceil(total / PAGE_ROWS));
  if (pages === 1) return null;
  const link = (n, text, label) => {
    const isTarget = n >= 0 && n < pages && n !== page;
    return pageLink(isTarget ? withParams(route, { page: n || "" }) : null, text, label);
  };
  return h("nav", { class: "pager", "aria-label": "Pages" },
    link(0, "«", "First page"), link(page - 1, "‹ Previous", "Previous page"),
    h("span", null, `${(page + 1).toLocaleString("en")} of ${pages.toLocaleString("en")}`),
    link(page + 1, "Next ›", "Next page"), link(pages - 1, "»", "Last page"));
}

// A link of a pager; without an address it cannot be followed.
export function pageLink(href, text, label) {
  if (!href) return h("span", { class: "page off", "aria-hidden": "true" }, text);
  return h("a", { class: "page", href, "aria-label": label }, text);
}

// options: [value, text]; onChange gets the chosen value.
export function select(label, value, options, onChange) {
  const element = h("select", { "aria-label": label, on: { change: () => onChange(element.value) } },
    options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value ?? "") }, text)));
  return h("label", { class: "field" }, h("span", null, label), element);
}

function input(label, value, onChange, props) {
  const element = h("input", {
    type: "text", value: value || "", "aria-label": label, autocomplete: "off", spellcheck: "false", ...props,
    on: { change: () => onChange(element.value.trim()) },
  });
  return h("label", { class: "field" }, h("span", null, label), element);
}

const HAS_OPTIONS = [
  ["", "all"], ["success", "successes"], ["failure", "failures"], ["fault", "faults and time-outs"],
  ["tool_error", "tool errors"], ["tools", "with tools"], ["no_tools", "without tools"],
];
const FOLDED_FILTERS = ["outcome", "kind", "tool", "env", "reward_from", "reward_to", "step", "version", "id"];
const LINKED_FILTERS = ["group", "task", "fault", "error"]; // set by links of other pages only

// The filters of episodes and groups. They are kept in the address.
export function filterBar(route, choices, orders) {
  const { params } = route;
  const linked = LINKED_FILTERS.filter((name) => params[name]);
  const folded = FOLDED_FILTERS.filter((name) => params[name]);
  const count = [...linked, ...folded, ...["q", "phase", "has"].filter((name) => params[name])].length;
  return h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
    h("div", { class: "fields" }, mainFields(route, choices, orders)),
    h("details", { open: folded.length > 0 },
      h("summary", null, folded.length ? `More filters (${folded.length} set)` : "More filters"),
      h("div", { class: "fields" }, foldedFields(route, choices))),
    h("div", { class: "chips" },
      linked.map((name) => h("a", {
        class: "chip", href: withParams(route, { [name]: "", page: "" }), title: "Remove this filter",
      }, `${name}: ${params[name]} ×`)),
      count > 1 ? h("a", { class: "chip", href: address(route.run, route.view, {}) }, "Clear all filters ×") : null));
}

function setFilter(route, name) {
  return (value) => setParams(route, { [name]: value, page: "" });
}

function mainFields(route, choices, orders) {
  const { params } = route;
  const [defaultOrder] = orders[0];
  const phases = choices.phases.map(({ phase, episodes }) => [phase, `${phase} (${episodes.toLocaleString("en")})`]);
  const setOrder = setFilter(route, "order");
  return [
    h("label", { class: "field wide" }, h("span", null, "Text"), searchBox(route)),
    phases.length > 1 ? select("Phase", params.phase, [["", "all"], ...phases], setFilter(route, "phase")) : null,
    select("Order", params.order || defaultOrder, orders, (value) => setOrder(value === defaultOrder ? "" : value)),
    select("Only", params.has, HAS_OPTIONS, setFilter(route, "has")),
  ];
}

function foldedFields(route, choices) {
  const { params } = route;
  const options = (values) => [["", "any"], ...values.map((value) => [value, OUTCOMES[value] || value])];
  const choose = (label, name, values) => select(label, params[name], options(values), setFilter(route, name));
  const short = (label, name) => input(label, params[name], setFilter(route, name), { class: "short" });
  const { outcomes, kinds, tools, envs, steps, versions } = choices;
  return [
    choose("Outcome", "outcome", outcomes),
    kinds.length > 1 ? choose("Kind of task", "kind", kinds) : null,
    tools.length ? choose("Tool", "tool", tools) : null,
    envs.length > 1 ? choose("Environment", "env", envs) : null,
    short("Reward from", "reward_from"),
    short("to", "reward_to"),
    steps[0] !== null ? short(`Step ${steps[0]}–${steps[1]}`, "step") : null,
    versions[0] !== null ? short(`Version ${versions[0]}–${versions[1]}`, "version") : null,
    input("Id contains", params.id, setFilter(route, "id")),
  ];
}

function searchBox(route) {
  const box = h("input", {
    type: "search", id: "search", value: route.params.q || "", placeholder: "in tasks, answers, tool output ( / )",
    "aria-label": "Text in tasks, answers and tool output", autocomplete: "off", spellcheck: "false",
  });
  box.dataset.sent = box.value; // the text that the address has got
  let timer = 0;
  const search = () => {
    clearTimeout(timer);
    const now = readAddress();
    box.dataset.sent = box.value;
    if (box.isConnected && box.value !== (now.params.q || "")) setParams(now, { q: box.value, page: "" });
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, SEARCH_DELAY_MS);
  });
  box.addEventListener("change", search);
  return box;
}

export function searchNote(page) {
  if (!page.search) return null;
  const { share, ended, matches: count } = page.search;
  if (!ended) return h("p", { class: "note" }, `Searching: ${Math.round(share * 100)} %, ${count} matches so far.`);
  return count >= MAX_MATCHES ? h("p", { class: "note" }, "The first 5,000 episodes with this text.") : null;
}

// Moves the focus along the rows of a list; false where there is no row.
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
  const link = document.querySelector(`.pager a[aria-label^="${step > 0 ? "Next" : "Previous"}"]`);
  if (link) location.hash = link.getAttribute("href");
}
