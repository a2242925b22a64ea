import { ask } from "./api.js";
import { conversation, tokenRows } from "./conversation.js";
import { OUTCOMES, copyButton, fill, h, number, rewardMark, seconds } from "./dom.js";
import { address, listOf, setParams, withParams } from "./lists.js";
import { SHADES, shadeBar } from "./tokens.js";
import { block, plainText } from "./text.js";

// One episode.

const TABS = { talk: "Conversation", tokens: "Tokens", info: "Task and info", raw: "JSON" };
let kept = { key: null, record: null };

export async function showEpisode(main, route, context) {
  const key = route.params.key || "";
  const wanted = { ...listOf(route.params), key };
  const id = JSON.stringify([context.run.number, wanted]);
  if (kept.key !== id) kept = { key: id, record: await ask(`${context.run.number}/episode`, wanted, context.signal) };
  const record = kept.record;
  const hasTokens = record.episode.turns.some((turn) => (turn.token_ids || []).length);
  const tab = Object.hasOwn(TABS, route.params.tab || "") ? route.params.tab : "talk";
  const usual = tab === "tokens" || record.episode.turns.some((turn) => turn.kind === "sampled") ? "logprob" : "off";
  const shade = Object.hasOwn(SHADES, route.params.shade || "") ? route.params.shade : usual;
  const bar = hasTokens && tab in { talk: 1, tokens: 1 } ? shadeBar(record, shade, (name) => setParams(route, { shade: name })) : null;
  const tell = bar ? bar.tell : () => {};
  const body = {
    talk: () => conversation(record, shade, tell), tokens: () => tokenRows(record, shade, tell),
    info: () => infoOf(record), raw: () => rawOf(record),
  }[tab]();
  fill(main, head(route, record),
    h("div", { class: "tabs", role: "tablist" }, Object.entries(TABS).map(([name, text]) => h("a", {
      role: "tab", "aria-selected": name === tab ? "true" : "false", href: withParams(route, { tab: name === "talk" ? "" : name }),
    }, text))),
    bar ? bar.bar : null, body);
  return { fixed: true, record, shade };
}

// How the episode ended, and by which limit.
function endOf(record) {
  const outcome = OUTCOMES[record.outcome] || record.outcome;
  const limit = record.episode.ended_by;
  return limit && limit !== "environment" ? `${outcome} (${limit})` : outcome;
}

// How many requests of its program were refused.
function refusedOf(info) {
  const counts = Object.values((info && info.refused_requests) || {}).filter(Number.isFinite);
  return counts.length ? `${number(counts.reduce((sum, n) => sum + n, 0))} requests refused` : "";
}

function head(route, record) {
  const to = (key, text, label) => (key ? h("a", { class: "page", href: withParams(route, { key }), "aria-label": label }, text)
    : h("span", { class: "page off", "aria-hidden": "true" }, text));
  const ended = record.episode.ended_by;
  const list = listOf(route.params);
  const parts = [
    record.phase, record.step !== null ? `step ${record.step}` : "", record.env, endOf(record),
    `${number(record.turns)} turns`, record.sampled ? `${number(record.sampled)} sampled tokens` : "", seconds(record.seconds), `seed ${record.seed}`,
    ended && ended !== "environment" ? `ended by ${ended}` : "", refusedOf(record.episode.info),
  ];
  const rewards = Object.entries(record.episode.rewards || {});
  return h("div", { class: "episode-head" },
    h("nav", { class: "pager", "aria-label": "Episodes" }, to(record.previous, "‹ Previous", "Previous episode"), to(record.next, "Next ›", "Next episode"),
      record.place ? h("span", { class: "dim" }, `${number(record.place)} of ${number(record.listed)}`) : null,
      h("a", { class: "page", href: address(route.run, "episodes", list) }, Object.keys(list).length ? "The list" : "All episodes")),
    h("h1", null, rewardMark(record), " ", h("span", { class: "id" }, record.id || "(without an id)")),
    h("p", { class: "dim" }, parts.filter(Boolean).join(" · ")),
    rewards.length ? h("dl", { class: "figures" }, rewards.map(([name, value]) => h("div", null, h("dt", null, plainText(name)), h("dd", null, number(value))))) : null,
    record.episode.error ? h("div", { class: "warning" }, block(record.episode.error, "text")) : null,
    record.siblings.length > 1 ? h("p", { class: "siblings" }, h("a", { href: address(route.run, "episodes", { phase: record.phase, group: record.group_id }) }, "Its group"),
      record.siblings.map((each) => h("a", { href: withParams(route, { key: each.key }),
        "aria-current": each.key === record.key ? "true" : null, title: each.id }, rewardMark(each)))) : null);
}

// What a program that asked the model left behind, as the environment external records it: its output, and what it was
// refused.
function programOf(info) {
  const program = info && typeof info.program === "object" ? info.program : null;
  if (!program) return [];
  const refused = Array.isArray(program.refused) ? program.refused.join("\n") : "";
  const parts = { "How the program was ended": program.note, "Refused requests": refused, "Standard output": program.stdout,
    "Standard error": program.stderr };
  return Object.entries(parts).filter(([, text]) => text)
    .map(([title, text]) => h("section", null, h("h3", null, title), block(text, "text")));
}

function infoOf(record) {
  const { task, info, rewards, seed, env, schema_version: version } = record.episode;
  const part = (title, value) => h("section", null, h("h3", null, title), block(value ?? "(none)", "code"));
  return h("div", null, ...programOf(info), part("Target", task.target), part("Metadata of the task", task.metadata), part("Rewards", rewards), part("Info", info),
    part("Episode", { id: record.episode.id, group_id: record.group_id, task: task.id, env, seed, schema_version: version }));
}

function rawOf(record) {
  const text = JSON.stringify(record.episode, null, 2);
  return h("div", null,
    h("div", { class: "fields" }, copyButton("Copy the JSON", text),
      Object.entries(record.commands || {}).map(([name, command]) => copyButton(`Copy a command: ${name}`, command))),
    Object.values(record.commands || {}).map((command) => block(command, "code")),
    h("p", { class: "dim" }, record.file || ""), block(text, "code", { chars: 40000, lines: 800 }));
}
