import { address } from "./address.js";
import { request } from "./api.js";
import { fill, h, rewardMark } from "./dom.js";
import { filterBar, pageParams, pager, searchNote } from "./lists.js";
import { number } from "./numbers.js";

// Groups: the episodes of one prompt with their rewards, the widest spread first.

const GROUP_ORDER_OPTIONS = [
  ["spread", "widest spread of rewards"], ["reward", "lowest mean reward"], ["reward_down", "highest mean reward"],
  ["written", "order of the files"], ["newest", "newest first"], ["size", "largest"],
];

export async function showGroups(main, route, context) {
  const [page, choices] = await Promise.all([
    request(`${context.run.number}/groups`, pageParams(route), context.signal), context.choices(),
  ]);
  fill(main, h("h1", null, "Groups"), filterBar(route, choices, GROUP_ORDER_OPTIONS), searchNote(page),
    h("p", { class: "dim" }, `${page.total.toLocaleString("en")} groups. The spread is the standard deviation of the ` +
      "rewards. Where it is 0, every group-relative advantage is 0, and nothing is learned."),
    page.rows.length ? h("ol", { class: "groups" }, page.rows.map((group) => groupItem(route.run, group)))
      : h("p", { class: "empty" }, context.empty("No group matches.")),
    pager(route, page.total));
  return { again: page.search && !page.search.ended };
}

function groupItem(run, group) {
  const { phase, group_id: id, low, high } = group;
  const hidden = group.size - group.episodes.length;
  const range = low === null ? "–" : low === high ? number(low, 2) : `${number(low, 2)} to ${number(high, 2)}`;
  const figure = (name, text) => h("div", null, h("dt", null, name), h("dd", null, text));
  return h("li", { class: "group" },
    h("a", { class: "row", href: address(run, "episodes", { phase, group: id }) },
      h("span", { class: "question" }, group.question || id),
      h("span", { class: "meta" },
        [phase, group.step !== null ? `step ${group.step}` : "", id].filter(Boolean).join(" · "))),
    h("dl", { class: "figures" },
      figure("spread", number(group.spread, 2)), figure("mean", number(group.mean, 2)), figure("range", range)),
    h("div", { class: "siblings" },
      group.episodes.map((episode) => h("a", {
        href: address(run, "episode", { key: episode.key, phase, group: id }), title: episode.id,
      }, rewardMark(episode))),
      hidden > 0 ? h("span", { class: "dim" }, `and ${hidden} more`) : null));
}
