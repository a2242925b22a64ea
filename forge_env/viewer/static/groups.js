import { ask } from "./api.js";
import { fill, h, number, rewardMark } from "./dom.js";
import { address, filterBar, pageParams, pager, searchNote } from "./lists.js";

// Groups: the siblings of one task side by side, those with the widest spread of rewards first.

const GROUP_CHOICES = [
  ["spread", "widest spread of rewards"], ["reward", "lowest mean reward"], ["reward_down", "highest mean reward"],
  ["written", "as in the files"], ["newest", "newest first"], ["size", "largest"],
];

export async function showGroups(main, route, context) {
  const [page, choices] = await Promise.all([
    ask(`${context.run.number}/groups`, pageParams(route), context.signal), context.choices(),
  ]);
  fill(main, h("h1", null, "Groups"), filterBar(route, choices, GROUP_CHOICES), searchNote(page),
    h("p", { class: "dim" }, `${page.total.toLocaleString("en")} groups. The spread is the standard deviation of the rewards: where it is 0, a group-relative advantage teaches nothing.`),
    page.rows.length ? h("ol", { class: "groups" }, page.rows.map((row) => groupItem(route.run, row)))
      : h("p", { class: "empty" }, context.empty("No group matches.")),
    pager(route, page.total));
  return { again: page.search && !page.search.ended };
}

function groupItem(run, row) {
  const more = row.size - row.episodes.length;
  return h("li", { class: "group" },
    h("a", { class: "row", href: address(run, "episodes", { phase: row.phase, group: row.group_id }) },
      h("span", { class: "question" }, row.question || row.group_id),
      h("span", { class: "meta" }, [row.phase, row.step !== null ? `step ${row.step}` : "", row.group_id].filter(Boolean).join(" · "))),
    h("dl", { class: "figures" },
      h("div", null, h("dt", null, "spread"), h("dd", null, number(row.spread, 2))),
      h("div", null, h("dt", null, "mean"), h("dd", null, number(row.mean, 2))),
      h("div", null, h("dt", null, "range"), h("dd", null, row.low === null ? "–" : row.low === row.high ? number(row.low, 2) : `${number(row.low, 2)} to ${number(row.high, 2)}`))),
    h("div", { class: "siblings" }, row.episodes.map((each) => h("a", { href: address(run, "episode", { key: each.key, phase: row.phase, group: row.group_id }), title: each.id }, rewardMark(each))),
      more > 0 ? h("span", { class: "dim" }, `and ${more} more`) : null));
}
