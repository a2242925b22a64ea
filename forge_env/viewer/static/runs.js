import { ask } from "./api.js";
import { chart, interval, smooth } from "./chart.js";
import { fill, h, number, seconds } from "./dom.js";
import { address, select, setParams } from "./lists.js";
import { block } from "./text.js";

// The list of runs, one run's overview, and the curves of both.

const USUAL = ["train:reward", "train:success", "train:loss", "train:entropy", "train:kl", "train:tokens/s"];
const LINES = 8;

export async function showRuns(main, route, context) {
  const { runs, place } = await ask("runs", {}, context.signal);
  const chosen = new Set((route.params.runs ? route.params.runs.split(",").map(Number) : firstRuns(runs)).filter((n) => runs[n]));
  const toggle = (n) => {
    if (chosen.has(n)) chosen.delete(n);
    else chosen.add(n);
    setParams(route, { runs: [...chosen].sort((a, b) => a - b).join(",") || "none" });
  };
  const order = [...chosen];
  const rows = runs.map((run) => h("tr", null,
    h("td", null, h("input", { type: "checkbox", checked: chosen.has(run.number), "aria-label": `Show the curves of ${run.name}`,
      on: { change: () => toggle(run.number) } }),
    chosen.has(run.number) ? h("i", { class: "swatch", css: { "--swatch": `var(--c${order.indexOf(run.number) % 8})` } }) : null),
    h("td", null, h("a", { class: "row", href: address(run.name, "overview") }, run.name)),
    h("td", { class: "opt" }, run.kind), h("td", { class: "opt" }, run.env), h("td", null, stateOf(run)),
    h("td", { class: "num" }, number(run.last.step)), h("td", { class: "num" }, number(run.last.reward)),
    h("td", { class: "num" }, headline(run))));
  const panel = await curves(route, runs.filter((run) => chosen.has(run.number)), context, []);
  fill(main, h("h1", null, "Runs"), h("p", { class: "dim" }, `${runs.length} in ${place}`),
    h("div", { class: "scroll" }, h("table", { class: "list" },
      h("thead", null, h("tr", null, ["Curves", "Run", "Kind", "Environment", "State", "Step", "Reward", "Success, 95%"].map((text, i) =>
        h("th", { scope: "col", class: i > 4 ? "num" : i === 2 || i === 3 ? "opt" : "" }, text)))), h("tbody", null, rows))), panel);
}

function firstRuns(runs) {
  return runs.filter((run) => Object.keys(run.metrics).length).slice(0, 6).map((run) => run.number);
}

function stateOf(run) {
  if (run.complete) return h("span", { class: "mark good" }, "complete");
  if (run.changed !== null && run.changed < 60) return h("span", { class: "mark some" }, "running");
  return h("span", { class: "mark none" }, run.changed === null ? "empty" : `not complete, ${seconds(run.changed)} ago`);
}

function headline(run) {
  const { before, after, evaluation } = run.result;
  const last = evaluation || after;
  if (!last) return "–";
  return `${before ? `${number(before.success)} → ` : ""}${number(last.success)} ${interval(last.interval)}`;
}

export async function showOverview(main, route, context) {
  const view = await ask(`${context.run.number}/overview`, {}, context.signal);
  const last = view.last.step || Math.max(0, ...view.evaluations.map((each) => each.step || 0));
  const points = view.evaluations.filter((each) => each.phase !== "tool_off").map((each) => ({
    ...each, x: each.step ?? (each.phase === "before" ? 0 : last),
  }));
  const panel = Object.keys(view.metrics).length ? await curves(route, [view], context, points) : null;
  fill(main, h("h1", null, view.name, " ", stateOf(view)), h("p", { class: "dim" },
    [view.kind === "evaluation" ? "evaluation" : view.kind === "file" ? "file of episodes" : "training run", view.algorithm, view.env, view.agent].filter(Boolean).join(" · ")),
  h("ul", { class: "cards" }, view.choices.phases.map((each) => h("li", null,
    h("a", { class: "row", href: address(view.name, "episodes", { phase: each.phase }) },
      h("b", null, each.episodes.toLocaleString("en")), h("span", null, `episodes of ${each.phase}`)))),
  view.choices.faults ? h("li", null, h("a", { class: "row", href: address(view.name, "faults") },
    h("b", null, view.choices.faults.toLocaleString("en")), h("span", null, "faults of ours"))) : null,
  view.choices.timeouts ? h("li", null, h("a", { class: "row", href: address(view.name, "episodes", { outcome: "timeout" }) },
    h("b", null, view.choices.timeouts.toLocaleString("en")), h("span", null, "time-outs, without a reward"))) : null),
  badLines(view.bad), measured(view), panel,
  Object.entries(view.documents).map(([name, data]) => h("details", { class: "document" }, h("summary", null, name), block(data, "code"))));
}

export function badLines(bad) {
  if (!bad.files.length) return null;
  const total = bad.files.reduce((sum, each) => sum + each.bad, 0);
  return h("details", { class: "warning" },
    h("summary", null, `${total.toLocaleString("en")} ${total === 1 ? "line is" : "lines are"} no episode, and left out`),
    h("ul", null, bad.lines.map((line) => h("li", null, `${line.phase}, byte ${line.offset.toLocaleString("en")}: ${line.reason}`))));
}

function measured(view) {
  if (!view.evaluations.length) return null;
  return h("section", null, h("h2", null, "Measured"), h("div", { class: "scroll" }, h("table", { class: "list" },
    h("thead", null, h("tr", null, ["Phase", "Step", "Success", "95% interval, by task", "Mean reward", "Episodes", "Tasks"].map((text, i) =>
      h("th", { scope: "col", class: i ? "num" : "" }, text)))),
    h("tbody", null, view.evaluations.map((each) => h("tr", null,
      h("td", null, h("a", { href: address(view.name, "episodes", { phase: each.phase }) }, each.phase)),
      h("td", { class: "num" }, number(each.step)), h("td", { class: "num" }, number(each.success)),
      h("td", { class: "num" }, interval(each.interval)), h("td", { class: "num" }, number(each.reward)),
      h("td", { class: "num" }, number(each.episodes), each.timeouts ? ` (${number(each.timeouts)} time-outs; success without them ${number(each.without_timeouts)})` : ""),
      h("td", { class: "num" }, number(each.tasks))))))));
}

// Charts of chosen metrics; with several runs one line each, in the colour of the list.
async function curves(route, runs, context, points) {
  const offered = new Map();
  for (const run of runs) {
    for (const [phase, names] of Object.entries(run.metrics)) for (const name of names) offered.set(`${phase}:${name}`, [phase, name]);
  }
  if (!offered.size) return runs.length ? h("p", { class: "empty" }, "No metrics yet.") : null;
  const usual = USUAL.filter((key) => offered.has(key));
  const wanted = (route.params.m ? route.params.m.split(",") : usual.length ? usual : [...offered.keys()].slice(0, 4)).filter((key) => offered.has(key));
  const axis = route.params.axis === "time" ? "time" : "step";
  const window = Math.max(1, Number(route.params.smooth || 1) || 1);
  const read = await Promise.all(runs.slice(0, LINES).map((run) => readCurves(run, wanted.map((key) => offered.get(key)), context)));
  const charts = wanted.map((key) => {
    const [phase, name] = offered.get(key);
    const lines = read.map((curvesOf, i) => lineOf(runs[i], curvesOf, phase, name, i, axis, window, runs.length)).filter(Boolean);
    const marks = axis === "step" && phase === "train" ? marksFor(name, runs, points) : [];
    return chart({ title: phase === "train" ? name : `${phase}: ${name}`, lines, points: marks, axis,
      onRemove: () => setParams(route, { m: wanted.filter((each) => each !== key).join(",") || "none" }) });
  });
  const rest = [...offered.keys()].filter((key) => !wanted.includes(key)).sort();
  const thinned = Math.max(1, ...read.flatMap((each) => Object.values(each).map((part) => part.per_point)));
  return h("section", { class: "curves" }, h("h2", null, "Curves"),
    h("div", { class: "fields" },
      select("Add a metric", "", [["", "…"], ...rest.map((key) => [key, key.replace(/^train:/, "")])], (key) => key && setParams(route, { m: [...wanted, key].join(",") })),
      select("Along", axis, [["step", "steps"], ["time", "time"]], (value) => setParams(route, { axis: value === "step" ? "" : value })),
      select("Smoothing", String(window), [["1", "none"], ["5", "mean of 5"], ["10", "mean of 10"], ["30", "mean of 30"], ["100", "mean of 100"]], (value) => setParams(route, { smooth: value === "1" ? "" : value }))),
    thinned > 1 ? h("p", { class: "note" }, `Each point is the mean of ${thinned} steps.`) : null,
    runs.length > LINES ? h("p", { class: "note" }, `The first ${LINES} of the chosen runs are drawn.`) : null,
    h("div", { class: "charts" }, charts));
}

async function readCurves(run, pairs, context) {
  const phases = new Map();
  for (const [phase, name] of pairs) phases.set(phase, [...(phases.get(phase) || []), name]);
  const found = {};
  for (const [phase, names] of phases) {
    found[phase] = await ask(`${run.number}/curves`, { phase, names: names.join(",") }, context.signal);
  }
  return found;
}

function lineOf(run, found, phase, name, n, axis, window, runs) {
  const values = found[phase] && found[phase].values[name];
  if (!values) return null;
  const x = found[phase][axis];
  const label = runs > 1 ? run.name : name;
  return { name: label, n, dash: Math.floor(n / 3), x, y: smooth(values, window), raw: window > 1 ? values : null };
}

function marksFor(name, runs, points) {
  if (name !== "success" && name !== "reward") return [];
  if (runs.length === 1) {
    return points.map((point) => (name === "success" ? { name: "held-out success, 95%", n: 1, x: point.x, y: point.success, interval: point.interval }
      : { name: "held-out reward", n: 1, x: point.x, y: point.reward }));
  }
  if (name === "reward") return []; // what a run says of itself at its end is its success
  return runs.slice(0, LINES).flatMap((run, n) => ["before", "after"].filter((key) => run.result[key]).map((key) => ({
    name: "held-out success, 95%", n, x: key === "before" ? 0 : run.last.step || 0, y: run.result[key].success, interval: run.result[key].interval,
  })));
}
