import { setParams } from "./address.js";
import { request } from "./api.js";
import { chart, runningMean } from "./chart.js";
import { defaultCharts, hasNews } from "./charts.js";
import { h } from "./dom.js";
import { select } from "./lists.js";

// The curves of one run in sections, or of several runs in one chart for each metric.

const DEFAULT_METRICS = ["train:reward", "train:success", "train:loss", "train:entropy", "train:kl", "train:tokens/s"];
const MAX_RUNS = 8;
const MISMATCH = "mean_abs_logprob_difference";
const ALARM = "mismatch_alarm";
const SMOOTHING = [
  ["1", "none"], ["5", "mean of 5"], ["10", "mean of 10"], ["30", "mean of 30"], ["100", "mean of 100"],
];

// points: the evaluations of a single run, with their step as `x`. Returns a section for each heading.
export async function curvesSections(route, runs, context, points) {
  const offered = new Map(); // "PHASE:METRIC" to [phase, metric]
  for (const run of runs) {
    for (const [phase, names] of Object.entries(run.metrics)) {
      for (const name of names) offered.set(`${phase}:${name}`, [phase, name]);
    }
  }
  if (!offered.size) return runs.length ? [h("p", { class: "empty" }, "No metrics yet.")] : [];
  const chosen = chosenCharts(route, [...offered.keys()], runs.length > 1);
  const axis = route.params.axis === "time" ? "time" : "step";
  const window = Math.max(1, Number(route.params.smooth || 1) || 1);
  const drawnRuns = runs.slice(0, MAX_RUNS);
  const metrics = chosen.flatMap(({ keys }) => keys.map((key) => offered.get(key)));
  const curves = await Promise.all(drawnRuns.map((run) => requestCurves(run, metrics, context)));
  const heldOut = runs.length === 1 ? await requestHeldOut(runs[0], metrics, context) : () => [];
  const valuesOf = (key) => curves.flatMap((phases) => phases[offered.get(key)[0]].values[offered.get(key)[1]] || []);
  const charts = route.params.m ? chosen : chosen.filter((one) => hasNews(one, valuesOf));
  const without = (one) => charts.filter((other) => other !== one).map(({ keys }) => keys.join("|")).join(",") || "none";
  const draw = (one) => {
    const [[phase, first]] = one.keys.map((key) => offered.get(key));
    const along = phase === "system" ? "time" : axis;
    const lines = one.keys.flatMap((key, k) => drawnRuns.map((run, n) => {
      const name = offered.get(key)[1];
      return lineOf(curves[n][phase], runs.length > 1 ? run.name : name, name, along, window, n + k);
    }));
    return chart({
      title: one.title || (phase === "train" ? first : `${phase}: ${first}`), note: one.note, axis: along,
      lines: lines.filter(Boolean),
      points: along === "step" && phase === "train"
        ? [...pointsFor(first, runs, points), ...heldOut(first), ...alarms(first, curves[0].train)] : [],
      onRemove: () => setParams(route, { m: without(one) }),
    });
  };
  const perPoint = Math.max(1, ...curves.flatMap((phases) => Object.values(phases).map((phase) => phase.per_point)));
  const titles = ["Curves", ...new Set(charts.map(({ section }) => section))].filter((t, i, all) => all.indexOf(t) === i);
  return titles.map((title) => h("section", { class: "curves" }, h("h2", null, title),
    title !== "Curves" ? null : [
      controls(route, offered, charts, axis, window),
      perPoint > 1 ? h("p", { class: "note" }, `Each point is the mean of ${perPoint} steps.`) : null,
      runs.length > MAX_RUNS ? h("p", { class: "note" }, `Only the first ${MAX_RUNS} chosen runs are drawn.`) : null,
    ],
    h("div", { class: "charts" }, charts.filter(({ section }) => section === title).map(draw))));
}

// The charts of the address, or those that one run or several runs have at first.
function chosenCharts(route, keys, areSeveral) {
  const charts = defaultCharts(keys);
  const chartOf = (listed) => {
    const known = charts.find((chart) => chart.keys.join("|") === listed);
    const own = listed.split("|").filter((key) => keys.includes(key));
    return { title: "", note: "", ...known, section: "Curves", keys: own };
  };
  if (route.params.m) return route.params.m.split(",").map(chartOf).filter((one) => one.keys.length);
  if (charts.length && !areSeveral) return charts;
  const common = DEFAULT_METRICS.filter((key) => keys.includes(key));
  return (common.length ? common : keys.slice(0, 4)).map(chartOf);
}

function controls(route, offered, charts, axis, window) {
  const chosen = charts.map(({ keys }) => keys.join("|"));
  const others = [...offered.keys()].filter((key) => !charts.some(({ keys }) => keys.includes(key))).sort();
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
  if (names.train?.includes(MISMATCH)) names.train.push(ALARM);
  const answers = {};
  for (const phase of Object.keys(names)) {
    answers[phase] = await request(`${run.number}/curves`, { phase, names: names[phase].join(",") }, context.signal);
  }
  return answers;
}

// The steps with too large a mismatch of trainer and generator, as points of its curve.
function alarms(name, { step, values }) {
  if (name !== MISMATCH || !values[ALARM]) return [];
  return step.map((x, i) => ({ name: "alarm", n: 3, x, y: values[ALARM][i] ? values[name][i] : null }))
    .filter(({ y }) => typeof y === "number");
}

// A function that returns the held-out values of a training metric, apart from those of `pointsFor`.
async function requestHeldOut(run, metrics, context) {
  const known = run.metrics.evaluation || [];
  const names = metrics.map(([phase, name]) => (phase === "train" ? name : "")).filter((name) =>
    name !== "success" && name !== "reward" && known.includes(name));
  if (!names.length) return () => [];
  const bound = (name, end) => name.replace(/^success\//, `success_${end}/`);
  const wanted = new Set(names.flatMap((name) => [name, bound(name, "low"), bound(name, "high")]));
  const { step, values } = await request(
    `${run.number}/curves`, { phase: "evaluation", names: [...wanted].join(",") }, context.signal);
  return (name) => step.map((x, i) => {
    const interval = ["low", "high"].map((end) => values[bound(name, end)]?.[i]);
    const hasInterval = name.startsWith("success/") && interval.every((end) => typeof end === "number");
    return { name: "held-out", n: 1, x, y: values[name]?.[i], interval: hasInterval ? interval : undefined };
  }).filter(({ y }) => typeof y === "number");
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
