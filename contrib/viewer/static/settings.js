import { request } from "./api.js";
import { h, table } from "./dom.js";

// The settings in which the chosen runs differ, for training runs and for evaluations.

const COMPARED = { training: "training runs", evaluation: "evaluations" };

export async function settingsSection(runs, context) {
  const tables = await Promise.all(Object.keys(COMPARED).map((kind) => differences(runs, kind, context)));
  return tables.some(Boolean) ? h("section", null, h("h2", null, "Settings that differ"), tables) : null;
}

async function differences(runs, kind, context) {
  const compared = runs.filter((run) => run.kind === kind);
  if (compared.length < 2) return null;
  const settings = await Promise.all(compared.map((run) => request(`${run.number}/settings`, {}, context.signal)));
  const names = [...new Set(settings.flatMap(Object.keys))].sort();
  const differing = names.filter((name) => new Set(settings.map((of) => valueOf(of, name))).size > 1);
  if (!differing.length) return h("p", { class: "note" }, `The chosen ${COMPARED[kind]} have the same settings.`);
  const columns = [["Setting", ""], ...compared.map((run) => [run.name, "value"])];
  return [h("p", { class: "dim" }, `Of the ${COMPARED[kind]}`),
    table(columns, differing.map((name) => [name, ...settings.map((of) => valueOf(of, name))]))];
}

function valueOf(settings, name) {
  return Object.hasOwn(settings, name) ? settings[name] : "–";
}
