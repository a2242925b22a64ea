import { address, setParams } from "./address.js";
import { request } from "./api.js";
import { swatch } from "./chart.js";
import { curvesSections } from "./curves.js";
import { fill, h, table } from "./dom.js";
import { exported } from "./exported.js";
import { interval, number } from "./numbers.js";
import { runState } from "./overview.js";
import { settingsSection } from "./settings.js";

// The list of runs, and the curves of the chosen ones.

const RUN_COLUMNS = [
  ["Curves", ""], ["Run", ""], ["Kind", ""], ["Environment", ""], ["Agent", "agent"], ["State", ""], ["Step", "num"],
  ["Reward", "num"], ["Success, 95%", "num"],
];
const CHOSEN_AT_FIRST = 6;

export async function showRuns(main, route, context) {
  const { runs, place } = await request("runs", {}, context.signal);
  const numbers = route.params.runs ? route.params.runs.split(",").map(Number) : firstRuns(runs);
  const chosen = numbers.filter((n, i) => runs[n] && numbers.indexOf(n) === i);
  const toggle = (n) => {
    const others = chosen.includes(n) ? chosen.filter((other) => other !== n) : [...chosen, n];
    setParams(route, { runs: others.sort((a, b) => a - b).join(",") || "none" });
  };
  const rows = runs.map((run) => [
    h("span", null, h("input", {
      type: "checkbox", checked: chosen.includes(run.number), "aria-label": `Show the curves of ${run.name}`,
      on: { change: () => toggle(run.number) },
    }), chosen.includes(run.number) ? swatch(chosen.indexOf(run.number)) : null),
    h("a", { class: "row", href: address(run.name, "overview") }, run.name),
    run.kind, run.env, agentOf(run), runState(run), number(run.last.step), number(run.last.reward), successOf(run),
  ]);
  const chosenRuns = runs.filter((run) => chosen.includes(run.number));
  const curves = await curvesSections(route, chosenRuns, context, []);
  fill(main, h("h1", null, "Runs"), h("p", { class: "dim" }, `${runs.length} in ${place}`),
    chosenRuns.length === 2 && !exported ? h("p", null, h("a", {
      href: address(chosenRuns[0].name, "compare", { other: chosenRuns[1].name }),
    }, "Compare the two chosen runs, task by task")) : null,
    table(RUN_COLUMNS, rows), curves, await settingsSection(chosenRuns, context));
}

// The agent of an evaluation, or the algorithm and the model of a training run.
function agentOf(run) {
  const model = run.model.split("/").slice(-2).join("/"); // of a long path
  const text = run.agent || [run.algorithm, model].filter(Boolean).join(" on ");
  return h("span", { title: run.agent || run.model || null }, text);
}

function firstRuns(runs) {
  const withMetrics = runs.filter((run) => Object.keys(run.metrics).length);
  return withMetrics.slice(0, CHOSEN_AT_FIRST).map((run) => run.number);
}

function successOf(run) {
  const { before, after, evaluation } = run.result;
  const last = evaluation || after;
  if (!last) return "–";
  return `${before ? `${number(before.success)} → ` : ""}${number(last.success)} ${interval(last.interval)}`;
}
