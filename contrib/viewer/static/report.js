import { address } from "./address.js";
import { request } from "./api.js";
import { sideBySide } from "./conversation.js";
import { h, rewardMark, table } from "./dom.js";

// What a training run did, beside its curves: figures, tables, and the same tasks before and after training.

export async function requestReport(run, signal) {
  const report = await request(`${run.number}/report`, {}, signal);
  const keys = (report.samples || []).flatMap(({ before, after }) => [before, after]).filter(Boolean);
  const details = new Map();
  for (const key of keys) {
    details.set(key, await request(`${run.number}/episode`, { key }, signal).catch((error) => {
      if (error.name === "AbortError") throw error;
      return null; // just cut off, or left out of an exported file
    }));
  }
  return { ...report, details };
}

export function figureTiles({ figures = [] }) {
  return !figures.length ? null : h("ul", { class: "tiles" }, figures.map(([label, figure, remark]) => h("li", null,
    h("div", null, h("b", null, figure), h("span", null, [label, remark].filter(Boolean).join(", "))))));
}

export function tableSections({ tables = [] }) {
  return tables.map(({ title, columns, rows, notes }) => h("section", null, h("h2", null, title),
    table(columns, rows), notes.map((note) => h("p", { class: "note" }, note))));
}

export function sampleSection(run, { samples = [], details }) {
  if (!samples.length) return null;
  return h("section", null, h("h2", null, "Episodes before and after, on the same tasks"),
    samples.map((sample, i) => [
      h("h3", null, [`Task ${i + 1}`, sample.change].filter(Boolean).join(": ")),
      h("div", { class: "sample" }, sideBySide(["before", "after"].filter((when) => sample[when])
        .map((when) => sampleSide(run, when, sample[when], details.get(sample[when]))))),
    ]));
}

function sampleSide(run, when, key, detail) {
  const link = h("a", { href: address(run.name, "episode", { key, phase: when }) }, `${when} training`);
  return { detail, mark: when, head: [link, " ", detail ? rewardMark(detail) : "This episode is too large for the file."] };
}
