import { setParams } from "./address.js";
import { request } from "./api.js";
import { chart, runningMean } from "./chart.js";
import { h } from "./dom.js";
import { select } from "./lists.js";

// The curves of one run, or of several runs in one chart for each metric.

const DEFAULT_METRICS = ["train:reward", "train:success", "train:loss", "train:entropy", "train:kl", "train:tokens/s"];
const MAX_PARTS = 6; // of the reward that are chosen at first
const MAX_RUNS = 8;
const SMOOTHING = [
  ["1", "none"], ["5", "mean of 5"], ["10", "mean of 10"], ["30", "mean of 30"], ["100", "mean of 100"],
];

// points: the evaluations of a single run, with their step as `x`.
export async function curvesSection(route, runs, context, points) {
  const offered = new Map(); // "PHASE:METRIC" to [phase, metric]
  for (const run of runs) {
    for (const [phase, names] of Object.entries(run.metrics)) {
      for (const name of names) offered.set(`${phase}:${name}`, [phase, name]);
    }
  }
  if (!offered.size) return runs.length ? h("p", { class: "empty" }, "No metrics yet.") : null;
  const chosen = chosenMetrics(route, offered);
  const axis = route.params.axis === "time" ? "time" : "step";
  const window = Math.max(1, Number(route.params.smooth || 1) || 1);
  const drawnRuns = runs.slice(0, MAX_RUNS);
  const metrics = chosen.map((key) => offered.get(key));
  const curves = await Promise.all(drawnRuns.map((run) => requestCurves(run, metrics, context)));
  const heldOut = runs.length === 1 ? await requestHeldOut(runs[0], metrics, context) : () => [];
  const charts = chosen.map((key) => {
    const [phase, name] = offered.get(key);
    const lines = drawnRuns.map((run, n) => {
      const label = runs.length > 1 ? run.name : name;
      return lineOf(curves[n][phase], label, name, axis, window, n);
    });
    return chart({
      title: phase === "train" ? name : `${phase}: ${name}`, lines: lines.filter(Boolean), axis,
      points: axis === "step" && phase === "train" ? [...pointsFor(name, runs, points), ...heldOut(name)] : [],
      onRemove: () => setParams(route, { m: chosen.filter((other) => other !== key).join(",") || "none" }),
    });
  });
  const perPoint = Math.max(1, ...curves.flatMap((phases) => Object.values(phases).map((phase) => phase.per_point)));
  return h("section", { class: "curves" }, h("h2", null, "Curves"),
    controls(route, offered, chosen, axis, window),
    perPoint > 1 ? h("p", { class: "note" }, `Each point is the mean of ${perPoint} steps.`) : null,
    runs.length > MAX_RUNS ? h("p", { class: "note" }, `Only the first ${MAX_RUNS} chosen runs are drawn.`) : null,
    h("div", { class: "charts" }, charts));
}

function chosenMetrics(route, offered) {
  const parts = [...offered.keys()].filter((key) => /^train:reward\/.+\/mean$/.test(key)).slice(0, MAX_PARTS);
  const [reward, ...others] = DEFAULT_METRICS.filter((key) => offered.has(key));
  const defaults = [reward, ...(parts.length > 1 ? parts : []), ...others].filter(Boolean);
  if (route.params.m) return route.params.m.split(",").filter((key) => offered.has(key));
  return defaults.length ? defaults : [...offered.keys()].slice(0, 4);
}

function controls(route, offered, chosen, axis, window) {
  const others = [...offered.keys()].filter((key) => !chosen.includes(key)).sort();
  const options = [["", "…"], ...others.map((key) => [key, key.replace(/^train:/, "")])];
  return h("div", { class: "fields" },
    select("Add a metric", "", options, (key) => key && setParams(route, { m: [...chosen, key].join(",") })),
    select("Along", axis, [["step", "steps"], ["time", "time"]],
      (value) => setParams(route, { axis: value === "step" ? "" : value })),
    select("Smoothing", String(window), SMOOTHING,
      (value) => setParams(route, { smooth: value === "1" ? "" : value })));
}

// The curves of one run by phase.
async function requestCurves(run, metrics, context) {
  const names = {};
  for (const [phase, name] of metrics) (names[phase] ||= []).push(name);
  const answers = {};
  for (const phase of Object.keys(names)) {
    answers[phase] = await request(`${run.number}/curves`, { phase, names: names[phase].join(",") }, context.signal);
  }
  return answers;
}

// A function that returns the held-out values of a training metric, apart from those of `pointsFor`.
async function requestHeldOut(run, metrics, context) {
  const names = metrics.map(([phase, name]) => (phase === "train" ? name : "")).filter((name) =>
    name !== "success" && name !== "reward" && (run.metrics.evaluation || []).includes(name));
  if (!names.length) return () => [];
  const { step, values } = await request(
    `${run.number}/curves`, { phase: "evaluation", names: names.join(",") }, context.signal);
  return (name) => step.map((x, i) => ({ name: "held-out", n: 1, x, y: (values[name] || [])[i] }))
    .filter(({ y }) => typeof y === "number");
}

function lineOf(curves, label, metric, axis, window, n) {
  const values = curves && curves.values[metric];
  if (!values) return null;
  const raw = window > 1 ? values : null;
  return { name: label, n, dash: Math.floor(n / 3), x: curves[axis], y: runningMean(values, window), raw };
}

// The evaluations that are drawn as points into the charts of reward and success.
function pointsFor(metric, runs, points) {
  if (metric !== "success" && metric !== "reward") return [];
  const name = metric === "success" ? "held-out success, 95%" : "held-out reward";
  if (runs.length === 1) {
    return points.map((point) => ({
      name, n: 1, x: point.x, y: point[metric], interval: metric === "success" ? point.interval : undefined,
    }));
  }
  if (metric === "reward") return []; // the result of a run has its success only
  return runs.slice(0, MAX_RUNS).flatMap((run, n) => ["before", "after"].filter((key) => run.result[key]).map((key) => {
    const { success, interval } = run.result[key];
    return { name, n, x: key === "before" ? 0 : run.last.step || 0, y: success, interval };
  }));
}
