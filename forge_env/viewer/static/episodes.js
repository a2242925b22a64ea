import { ask } from "./api.js";
import { OUTCOMES, fill, h, number, rewardMark, seconds } from "./dom.js";
import { address, filterBar, listOf, pageParams, pager, searchNote } from "./lists.js";

// Episodes: one line each.

const EPISODE_CHOICES = [
  ["written", "as in the files"], ["newest", "newest first"], ["reward", "lowest reward"], ["reward_down", "highest reward"],
  ["turns", "most turns"], ["tokens", "most sampled tokens"], ["seconds", "longest"], ["step", "latest step"],
];

export async function showEpisodes(main, route, context) {
  const [page, choices] = await Promise.all([
    ask(`${context.run.number}/episodes`, pageParams(route), context.signal), context.choices(),
  ]);
  const columns = ["Reward", "Task", "Phase", "Step", "Version", "Tools", "Turns", "Tokens", "Took"];
  const table = h("div", { class: "table", role: "table", "aria-label": "Episodes" },
    h("div", { class: "tr head", role: "row" }, columns.map((text) => h("span", { role: "columnheader", class: `col-${text.toLowerCase()}` }, text))),
    page.rows.map((row) => episodeRow(route, row)));
  fill(main, h("h1", null, "Episodes"), filterBar(route, choices, EPISODE_CHOICES), searchNote(page),
    h("p", { class: "dim" }, `${page.total.toLocaleString("en")} episodes${page.search && !page.search.ended ? " so far" : ""}`),
    page.rows.length ? table : h("p", { class: "empty" }, context.empty("No episode matches.")), pager(route, page.total));
  return { again: page.search && !page.search.ended };
}

function episodeRow(route, row) {
  const versions = row.version_low === null ? "–" : row.version_low === row.version_high ? `v${row.version_low}` : `v${row.version_low}–${row.version_high}`;
  const told = row.fault && row.outcome !== "timeout" ? (row.error.startsWith(row.fault) ? row.error : `${row.fault}: ${row.error}`) : row.outcome === "scored" ? "" : [OUTCOMES[row.outcome] || row.outcome, row.error].filter(Boolean).join(": ");
  const cell = (name, ...content) => h("span", { role: "cell", class: `col-${name}` }, content);
  return h("a", { class: "tr row", role: "row", href: address(route.run, "episode", { key: row.key, ...listOf(route.params) }) },
    cell("reward", rewardMark(row)),
    cell("task", h("span", { class: "question" }, row.question || row.id), h("span", { class: "meta" }, row.id, told ? h("span", { class: "told-of" }, ` ${told}`) : null)),
    cell("phase", row.phase), cell("step", number(row.step)), cell("version", versions),
    cell("tools", row.tools.join(", "), row.tool_errors ? h("span", { class: "told-of" }, ` ${row.tool_errors} failed`) : null),
    cell("turns", number(row.turns)), cell("tokens", number(row.sampled)), cell("took", seconds(row.seconds)));
}
