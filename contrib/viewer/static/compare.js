import { address, setParams, withParams } from "./address.js";
import { request } from "./api.js";
import { sideBySide } from "./conversation.js";
import { fill, h, rewardMark, table } from "./dom.js";
import { pageLink, pageParams, pager, select } from "./lists.js";
import { number } from "./numbers.js";
import { settingsSection } from "./settings.js";

// Two evaluations side by side: what changed by kind of task, the same tasks, and two episodes turn by turn.

const ORDER_OPTIONS = [
  ["regressions", "worst regressions first"], ["improvements", "best improvements first"],
  ["written", "order of the files"],
];
const CHANGE_OPTIONS = [["", "all"], ["worse", "worse"], ["better", "better"], ["same", "the same"]];
const DIFFERENCE_COLUMNS = [
  ["Success", ""], ["Tasks", "num"], ["A", "num"], ["B", "num"], ["B − A, 95%", "num"], ["Better / worse / same", "num"],
  ["p", "num"],
];
const SIDES = ["A", "B"];

export async function showComparison(main, route, context) {
  const runs = runsOf(route, context);
  const params = { ...pageParams(route), other: String(runs[1].number) };
  const page = await request(`${runs[0].number}/compare`, params, context.signal);
  const figures = h("div", null, page.reading || page.refusal ? null : h("p", { class: "dim" }, "Comparing."));
  fill(main, h("h1", null, "Comparison"), sideFields(route, context, runs, page),
    page.reading ? h("p", { class: "note" }, "The episodes are still being read: the figures follow.") : null,
    page.refusal ? h("p", { class: "warning" }, page.refusal) : figures,
    page.rows.length ? h("ol", { class: "groups" }, page.rows.map((task, i) => taskItem(route, page, task, i)))
      : h("p", { class: "empty" }, page.refusal ? "" : "No task matches."),
    pager(route, page.total));
  if (!page.reading && !page.refusal) await showFigures(figures, route, runs, params, context);
  return { again: page.reading };
}

function runsOf(route, context) {
  const other = context.runs.find(({ name }) => name === (route.params.other || route.run));
  if (!other) throw new Error(`There is no run ${route.params.other} here.`);
  return [context.run, other];
}

// What is compared, and which tasks are listed.
function sideFields(route, context, runs, page) {
  const options = (names) => names.map((name) => [name, name]);
  const set = (name) => (value) => setParams(route, { [name]: value, page: "" });
  const setOther = (value) => setParams(route, { other: value, other_phase: "", page: "" });
  return h("div", { class: "filters" },
    h("div", { class: "fields" },
      h("span", null, h("b", null, "A "), h("a", { href: address(route.run, "overview") }, route.run)),
      select("Phase of A", page.chosen[0], options(page.phases[0]), set("phase")),
      select("B", runs[1].name, options(context.runs.map(({ name }) => name)), setOther),
      select("Phase of B", page.chosen[1], options(page.phases[1]), set("other_phase"))),
    h("div", { class: "fields" },
      select("Order", route.params.order || "regressions", ORDER_OPTIONS, set("order")),
      select("Only", route.params.change, CHANGE_OPTIONS, set("change")),
      route.params.kind ? h("a", { class: "chip", href: withParams(route, { kind: "", page: "" }) },
        `kind: ${route.params.kind} ×`) : null,
      h("span", { class: "dim" }, `${page.total.toLocaleString("en")} tasks of both`)));
}

async function showFigures(place, route, runs, params, context) {
  const [figures, settings] = await Promise.all([
    request(`${runs[0].number}/differences`, params, context.signal).catch((error) => {
      if (error.name === "AbortError") throw error;
      return { error: error.message };
    }),
    runs[0] === runs[1] ? null : settingsSection(runs, context),
  ]);
  if (figures.error) return void fill(place, h("p", { class: "warning" }, figures.error), settings);
  const kinds = figures.rows.length - 1;
  fill(place, figures.notes.map((note) => h("p", { class: "note" }, `${note[0].toUpperCase()}${note.slice(1)}.`)),
    table(DIFFERENCE_COLUMNS, figures.rows.map((row) => differenceRow(route, row, figures.kinds))),
    h("p", { class: "dim" }, "Pairs are the attempts that both have. Intervals and p are clustered by task",
      kinds > 1 ? `; those of the ${kinds} kinds are corrected for their number.` : "."),
    settings ? h("details", { class: "document" }, h("summary", null, "Settings"), settings) : null);
}

function differenceRow(route, { kind, tasks, first, second, paired }, kinds) {
  const { difference: { value, low, high }, wins, losses, ties, p_value: p } = paired;
  const signed = (x) => (x === null ? "–" : `${x > 0 ? "+" : ""}${number(x)}`);
  const name = low > 0 ? "good" : high < 0 ? "fault" : "none";
  return [
    kinds.includes(kind) ? h("a", { href: withParams(route, { kind, page: "" }) }, kind) : kind || "all tasks", number(tasks), number(first), number(second),
    h("span", null, h("span", { class: `mark ${name}` }, signed(value)), ` [${signed(low)}, ${signed(high)}]`),
    `${number(wins)} / ${number(losses)} / ${number(ties)}`, p < 0.0001 ? "< 0.0001" : p.toFixed(4),
  ];
}

function taskItem(route, page, task, i) {
  const at = Number(pageParams(route).offset) + i;
  const hidden = task.pairs - task.episodes.length;
  const figure = (name, text) => h("div", null, h("dt", null, name), h("dd", null, text));
  const href = ([a, b]) => address(route.run, "pair", {
    ...route.params, page: "", phase: page.chosen[0], other_phase: page.chosen[1], key: a.key, other_key: b.key, at,
  });
  return h("li", { class: "group" },
    h("a", { class: "row", href: href(task.episodes[0]) },
      h("span", { class: "question" }, task.question || task.task),
      h("span", { class: "meta" }, [task.kind, task.task].filter(Boolean).join(" · "))),
    h("dl", { class: "figures" }, figure("A", number(task.share)), figure("B", number(task.other_share))),
    h("div", { class: "siblings" },
      task.episodes.map((pair) => h("a", { href: href(pair), title: pair[0].id, class: "pair" },
        rewardMark(pair[0]), " → ", rewardMark(pair[1]))),
      hidden > 0 ? h("span", { class: "dim" }, `and ${hidden} more`) : null));
}

export async function showPair(main, route, context) {
  const runs = runsOf(route, context);
  const at = Number(route.params.at || 0);
  const around = { ...route.params, other: String(runs[1].number), offset: String(Math.max(0, at - 1)), limit: "3" };
  const keys = [route.params.key, route.params.other_key];
  const [page, ...details] = await Promise.all([
    request(`${runs[0].number}/compare`, around, context.signal),
    ...runs.map((run, i) => request(`${run.number}/episode`, { key: keys[i] || "" }, context.signal)),
  ]);
  const linkTo = (task, place) => (task ? withParams(route, {
    key: task.episodes[0][0].key, other_key: task.episodes[0][1].key, at: place,
  }) : null);
  const { key, other_key, at: place, ...list } = route.params;
  fill(main,
    h("nav", { class: "pager", "aria-label": "Tasks" },
      pageLink(linkTo(at > 0 ? page.rows[0] : null, at - 1), "‹ Previous", "Previous task"),
      pageLink(linkTo(page.rows[at > 0 ? 2 : 1], at + 1), "Next ›", "Next task"),
      h("span", { class: "dim" }, `${number(at + 1)} of ${number(page.total)}`),
      h("a", { class: "page", href: address(route.run, "compare", list) }, "The list")),
    h("h1", null, "Side by side"),
    h("p", { class: "dim" }, details[0].question),
    sideBySide(details.map((detail, i) => ({
      detail, mark: SIDES[i],
      head: [h("a", { href: address(runs[i].name, "episode", { key: keys[i], phase: detail.phase }) },
        `${runs[i].name}, ${detail.phase}`), " ", rewardMark(detail)],
    }))));
  return { fixed: true };
}
