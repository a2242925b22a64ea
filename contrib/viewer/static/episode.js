import { address, listParams, setParams, withParams } from "./address.js";
import { request } from "./api.js";
import { conversation, tokenRows } from "./conversation.js";
import { OUTCOMES, copyButton, fill, h, rewardMark } from "./dom.js";
import { pageLink } from "./lists.js";
import { number, seconds } from "./numbers.js";
import { rowTree } from "./rows.js";
import { block, plainText } from "./text.js";
import { SHADES, shadeBar } from "./tokens.js";

// One episode: as a conversation, as tokens, its task and info, its JSON.

const TABS = { talk: "Conversation", tokens: "Tokens", info: "Task and info", raw: "JSON" };
let cache = { key: null, detail: null }; // another tab or shading requests nothing

export async function showEpisode(main, route, context) {
  const detail = await requestDetail(route, context);
  const { turns } = detail.episode;
  const tab = Object.hasOwn(TABS, route.params.tab || "") ? route.params.tab : "talk";
  const defaultShade = tab === "tokens" || turns.some((turn) => turn.kind === "sampled") ? "logprob" : "off";
  const shade = Object.hasOwn(SHADES, route.params.shade || "") ? route.params.shade : defaultShade;
  const hasTokens = turns.some((turn) => (turn.token_ids || []).length);
  const isShadable = hasTokens && (tab === "talk" || tab === "tokens");
  const shading = isShadable ? shadeBar(detail, shade, (name) => setParams(route, { shade: name })) : null;
  const describe = shading ? shading.describe : () => {};
  const body = {
    talk: () => conversation(detail, shade, describe), tokens: () => tokenRows(detail, shade, describe),
    info: () => infoSections(detail), raw: () => rawJson(detail),
  }[tab]();
  fill(main, episodeHead(route, detail),
    h("div", { class: "tabs", role: "tablist" }, Object.entries(TABS).map(([name, text]) => h("a", {
      role: "tab", "aria-selected": name === tab ? "true" : "false",
      href: withParams(route, { tab: name === "talk" ? "" : name }),
    }, text))),
    tab === "talk" ? rowTree(detail) : null, shading ? shading.bar : null, body);
  return { fixed: true, detail, shade };
}

async function requestDetail(route, context) {
  const params = { ...listParams(route.params), key: route.params.key || "" };
  const key = JSON.stringify([context.run.number, params]);
  if (cache.key !== key) {
    cache = { key, detail: await request(`${context.run.number}/episode`, params, context.signal) };
  }
  return cache.detail;
}

function episodeHead(route, detail) {
  const { episode } = detail;
  const rewards = Object.entries(episode.rewards || {});
  return h("div", { class: "episode-head" },
    episodePager(route, detail),
    h("h1", null, rewardMark(detail), " ", h("span", { class: "id" }, detail.id || "(without an id)")),
    h("p", { class: "dim" }, episodeFacts(detail)),
    rewards.length ? h("dl", { class: "figures" }, rewards.map(([name, value]) =>
      h("div", null, h("dt", null, plainText(name)), h("dd", null, number(value))))) : null,
    episode.error ? h("div", { class: "warning" }, block(episode.error, "text")) : null,
    detail.siblings.length > 1 ? siblingLinks(route, detail) : null);
}

function episodePager(route, detail) {
  const list = listParams(route.params);
  const href = (key) => (key ? withParams(route, { key }) : null);
  return h("nav", { class: "pager", "aria-label": "Episodes" },
    pageLink(href(detail.previous), "‹ Previous", "Previous episode"),
    pageLink(href(detail.next), "Next ›", "Next episode"),
    detail.place ? h("span", { class: "dim" }, `${number(detail.place)} of ${number(detail.listed)}`) : null,
    h("a", { class: "page", href: address(route.run, "episodes", list) },
      Object.keys(list).length ? "The list" : "All episodes"));
}

function episodeFacts(detail) {
  const limit = detail.episode.ended_by;
  return [
    detail.phase, detail.step !== null ? `step ${detail.step}` : "", detail.env,
    OUTCOMES[detail.outcome] || detail.outcome, `${number(detail.turns)} turns`,
    detail.sampled ? `${number(detail.sampled)} sampled tokens` : "", seconds(detail.seconds), `seed ${detail.seed}`,
    limit && limit !== "environment" ? `ended by ${limit}` : "", refusedRequests(detail.episode.info),
  ].filter(Boolean).join(" · ");
}

function refusedRequests(info) {
  const counts = Object.values((info && info.refused_requests) || {}).filter(Number.isFinite);
  return counts.length ? `${number(counts.reduce((sum, n) => sum + n, 0))} requests refused` : "";
}

function siblingLinks(route, detail) {
  const group = address(route.run, "episodes", { phase: detail.phase, group: detail.group_id });
  return h("p", { class: "siblings" }, h("a", { href: group }, "Its group"),
    detail.siblings.map((sibling) => h("a", {
      href: withParams(route, { key: sibling.key }), "aria-current": sibling.key === detail.key ? "true" : null,
      title: sibling.id,
    }, rewardMark(sibling))));
}

function infoSections(detail) {
  const { task, info, rewards, seed, env, schema_version: version } = detail.episode;
  const section = (title, value) => h("section", null, h("h3", null, title), block(value ?? "(none)", "code"));
  const ids = { id: detail.episode.id, group_id: detail.group_id, task: task.id, env, seed, schema_version: version };
  return h("div", null, ...programSections(info), section("Target", task.target),
    section("Metadata of the task", task.metadata), section("Rewards", rewards), section("Info", info),
    section("Episode", ids));
}

// The output of an agent program and its refused requests, as the environment `external` records them.
function programSections(info) {
  const program = info && typeof info.program === "object" ? info.program : null;
  if (!program) return [];
  const refused = Array.isArray(program.refused) ? program.refused.join("\n") : "";
  const texts = {
    "How the program was ended": program.note, "Refused requests": refused, "Standard output": program.stdout,
    "Standard error": program.stderr,
  };
  return Object.entries(texts).filter(([, text]) => text)
    .map(([title, text]) => h("section", null, h("h3", null, title), block(text, "text")));
}

function rawJson(detail) {
  const text = JSON.stringify(detail.episode, null, 2);
  const commands = Object.entries(detail.commands || {});
  return h("div", null,
    h("div", { class: "fields" }, copyButton("Copy the JSON", text),
      commands.map(([name, command]) => copyButton(`Copy a command: ${name}`, command))),
    commands.map(([, command]) => block(command, "code")),
    h("p", { class: "dim" }, detail.file || ""), block(text, "code", { chars: 40000, lines: 800 }));
}
