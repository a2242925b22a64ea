import { address, listParams } from "./address.js";
import { request } from "./api.js";
import { OUTCOMES, fill, h, rewardMark } from "./dom.js";
import { filterBar, pageParams, pager, searchNote } from "./lists.js";
import { number, seconds } from "./numbers.js";

// The list of episodes.

const EPISODE_ORDER_OPTIONS = [
  ["written", "order of the files"], ["newest", "newest first"], ["reward", "lowest reward"],
  ["reward_down", "highest reward"], ["turns", "most turns"], ["tokens", "most sampled tokens"], ["seconds", "longest"],
  ["step", "latest step"],
];
const EPISODE_COLUMNS = ["Reward", "Task", "Phase", "Step", "Version", "Tools", "Turns", "Tokens", "Took"];

export async function showEpisodes(main, route, context) {
  const [page, choices] = await Promise.all([
    request(`${context.run.number}/episodes`, pageParams(route), context.signal), context.choices(),
  ]);
  const isSearching = page.search && !page.search.ended;
  const headings = EPISODE_COLUMNS.map((text) =>
    h("span", { role: "columnheader", class: `col-${text.toLowerCase()}` }, text));
  const rows = h("div", { class: "table", role: "table", "aria-label": "Episodes" },
    h("div", { class: "tr head", role: "row" }, headings), page.rows.map((row) => episodeRow(route, row)));
  fill(main, h("h1", null, "Episodes"), filterBar(route, choices, EPISODE_ORDER_OPTIONS), searchNote(page),
    h("p", { class: "dim" }, `${page.total.toLocaleString("en")} episodes${isSearching ? " so far" : ""}`),
    page.rows.length ? rows : h("p", { class: "empty" }, context.empty("No episode matches.")),
    pager(route, page.total));
  return { again: isSearching };
}

function episodeRow(route, row) {
  const { version_low: low, version_high: high } = row;
  const problem = problemOf(row);
  const failed = row.tool_errors ? h("span", { class: "problem" }, ` ${row.tool_errors} failed`) : null;
  const cell = (name, ...content) => h("span", { role: "cell", class: `col-${name}` }, content);
  const href = address(route.run, "episode", { key: row.key, ...listParams(route.params) });
  return h("a", { class: "tr row", role: "row", href },
    cell("reward", rewardMark(row)),
    cell("task", h("span", { class: "question" }, row.question || row.id),
      h("span", { class: "meta" }, row.id, problem ? h("span", { class: "problem" }, ` ${problem}`) : null)),
    cell("phase", row.phase), cell("step", number(row.step)),
    cell("version", low === null ? "–" : low === high ? `v${low}` : `v${low}–${high}`),
    cell("tools", row.tools.join(", "), failed),
    cell("turns", number(row.turns)), cell("tokens", number(row.sampled)), cell("took", seconds(row.seconds)));
}

// Why an episode did not end with a score; "" where it did.
function problemOf({ fault, outcome, error }) {
  if (fault && outcome !== "timeout") return error.startsWith(fault) ? error : `${fault}: ${error}`;
  return outcome === "scored" ? "" : [OUTCOMES[outcome] || outcome, error].filter(Boolean).join(": ");
}
