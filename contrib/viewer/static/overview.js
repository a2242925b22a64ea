import { address } from "./address.js";
import { request } from "./api.js";
import { curvesSections } from "./curves.js";
import { fill, h, table } from "./dom.js";
import { exported } from "./exported.js";
import { interval, number, seconds } from "./numbers.js";
import { figureTiles, sampleSection, tableSections } from "./report.js";
import { block } from "./text.js";

// The overview of a run: what it found, its figures, evaluations, curves, tables, sample episodes, documents.

const KINDS = { training: "training run", evaluation: "evaluation", file: "file of episodes" };

export async function showOverview(main, route, context) {
  const run = await request(`${context.run.number}/overview`, {}, context.signal);
  const lastStep = run.last.step || Math.max(0, ...run.evaluations.map((evaluation) => evaluation.step || 0));
  const results = run.evaluations.filter(isResult);
  const isHeadline = ({ phase }) => phase !== "tool_off" && !phase.includes("."); // no further set, such as the greedy one
  const points = results.filter(isHeadline).map((evaluation) => ({
    ...evaluation, x: evaluation.step ?? (evaluation.phase === "before" ? 0 : lastStep),
  }));
  const curves = Object.keys(run.metrics).length ? await curvesSections(route, [run], context, points) : [];
  const [why, tiles, tables, change, samples] = Array.from({ length: 5 }, () => h("div"));
  fill(main, h("h1", null, run.name, " ", runState(run)), h("p", { class: "dim" }, factsOf(run)), why,
    findings(run), cards(run), tiles, badLines(run.bad), evaluationsTable(run), change, curves[0], tables,
    curves.slice(1), samples,
    Object.entries(run.documents).map(([name, data]) => h("details", { class: "document" },
      h("summary", null, name), block(data, "code"))));
  const report = await context.report();
  fill(why, report.why_incomplete ? h("p", null, "This run is not complete: ", report.why_incomplete) : null);
  fill(tiles, figureTiles(report));
  fill(change, report.change ? h("p", null, report.change) : null);
  fill(tables, tableSections(report));
  fill(samples, sampleSection(run, report));
}

function factsOf(run) {
  const { "summary.json": summary, "run.json": facts } = run.documents;
  const { model_parameters: size, seed, started } = { ...facts, ...summary };
  return [
    KINDS[run.kind], run.algorithm, run.env, run.agent || run.model, size ? `${number(size)} parameters` : "",
    seed === undefined ? "" : `seed ${seed}`, started ? String(started).slice(0, 16).replace("T", " ") : "",
  ].filter(Boolean).join(" · ");
}

export function runState(run) {
  if (run.complete) return h("span", { class: "mark good" }, "complete");
  if (exported) return h("span", { class: "mark none" }, "not complete");
  if (run.changed !== null && run.changed < 60) return h("span", { class: "mark some" }, "running");
  const text = run.changed === null ? "empty" : `not complete, ${seconds(run.changed)} ago`;
  return h("span", { class: "mark none" }, text);
}

// The success of a run as its first tile: before and after training, or of the evaluation.
function resultCard(run) {
  const known = Object.fromEntries(run.evaluations.filter(isResult).map((evaluation) => [evaluation.phase, evaluation]));
  const { before = known.before, after = known.after, evaluation } = run.result;
  const last = evaluation || after || before;
  if (!last) return null;
  const phase = evaluation ? "episodes" : after ? "after" : "before";
  const isPair = !evaluation && before && after;
  const text = evaluation ? "success" : isPair ? "success before and after" : `success ${phase} training`;
  return h("li", null,
    h("a", { class: "row result", href: address(run.name, "episodes", { phase }) },
      h("b", null, isPair ? `${number(before.success)} → ${number(after.success)}` : number(last.success)),
      h("span", null, text, last.interval ? ` ${interval(last.interval)}` : "")));
}

function cards(run) {
  const { phases, faults, timeouts } = run.choices;
  const card = (count, text, view, params) => h("li", null,
    h("a", { class: "row", href: address(run.name, view, params) },
      h("b", null, count.toLocaleString("en")), h("span", null, text)));
  return h("ul", { class: "cards" }, resultCard(run),
    phases.map(({ phase, episodes }) => card(episodes, `${run.cut.includes(phase) ? "last " : ""}episodes of ${phase}`, "episodes", { phase })),
    faults ? card(faults, "faults", "faults") : null,
    timeouts ? card(timeouts, "time-outs", "episodes", { outcome: "timeout" }) : null);
}

// What the run itself has found that may keep it from learning.
function findings(run) {
  const { "summary.json": summary, "run.json": facts } = run.documents;
  const listed = (summary || facts || {}).findings;
  const found = Array.isArray(listed) ? listed.filter(Boolean) : [];
  if (!found.length) return null;
  return h("section", { class: "warning" }, h("h2", null, "What may keep it from learning"),
    h("ul", null, found.map((finding) => h("li", null,
      `Step ${finding.step} to ${finding.last_step}: ${finding.measured}. Likely cause: ${finding.cause}. `,
      `Try: ${finding.settings}.`))));
}

export function badLines(bad) {
  if (!bad.files.length) return null;
  const total = bad.files.reduce((sum, file) => sum + file.bad, 0);
  const holds = total === 1 ? "line holds no episode and is" : "lines hold no episode and are";
  return h("details", { class: "warning" },
    h("summary", null, `${total.toLocaleString("en")} ${holds} left out`),
    h("ul", null, bad.lines.map((line) =>
      h("li", null, `${line.phase}, byte ${line.offset.toLocaleString("en")}: ${line.reason}`))));
}

function evaluationsTable(run) {
  if (!run.evaluations.length) return null;
  const columns = ["Phase", "Step", "Success", "95% interval, by task", "Mean reward", "Episodes", "Tasks", "Faults"];
  const rows = run.evaluations.map((evaluation) => [
    h("span", null, h("a", { href: address(run.name, "episodes", { phase: evaluation.phase }) }, evaluation.title),
      ...progressOf(evaluation)),
    number(evaluation.step), number(evaluation.success), interval(evaluation.interval), number(evaluation.reward),
    number(evaluation.episodes) + plannedOf(evaluation) + timeoutsOf(evaluation), number(evaluation.tasks),
    number(evaluation.faults),
  ]);
  return h("section", null, h("h2", null, "Evaluations"),
    table(columns.map((text, i) => [text, i ? "num" : ""]), rows));
}

// Whether the figures are of all the episodes of an evaluation.
function isResult(evaluation) {
  return !evaluation.reading && evaluation.finished;
}

function progressOf(evaluation) {
  if (isResult(evaluation)) return [];
  return [" ", h("span", { class: "mark some" }, evaluation.reading ? "still being read" : "not finished")];
}

function plannedOf({ planned }) {
  return planned ? ` of ${number(planned)} planned` : "";
}

function timeoutsOf({ timeouts, without_timeouts: success }) {
  if (!timeouts) return "";
  return ` (${number(timeouts)} ${timeouts === 1 ? "time-out" : "time-outs"}; success without them ${number(success)})`;
}
