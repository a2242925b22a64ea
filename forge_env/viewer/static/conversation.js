import { h, number, seconds } from "./dom.js";
import { scaleOf, strip, turnTokens } from "./tokens.js";
import { block, plainText } from "./text.js";

// An episode as a conversation: what each side said, the calls of tools, and what came back.

const ROLES = { system: "System", user: "User", assistant: "Model", tool: "Tool" };

export function conversation(record, shade, tell) {
  const { turns, tail } = record.episode;
  const scale = scaleOf(record);
  const list = h("ol", { class: "talk" });
  let pending = [];
  turns.forEach((turn, n) => {
    if (n > 0 && turn.starts_row && turn.kind !== "text") {
      list.append(h("li", { class: "break" }, "A new row of tokens starts here: the chat template has rewritten the history before it."));
    }
    pending = given(list, turn.observation || [], pending);
    list.append(turnItem(record, turn, n, shade, scale, tell));
    pending = (turn.tool_uses || []).slice();
  });
  given(list, tail || [], pending);
  return list;
}

// What the environment said; its tool messages are the answers to the calls before, in order.
function given(list, messages, uses) {
  for (const message of messages) {
    const use = message.role === "tool" ? uses.shift() : null;
    list.append(h("li", { class: `message ${ROLES[message.role] ? message.role : "other"}` },
      h("div", { class: "who" }, h("b", null, ROLES[message.role] || message.role),
        message.name ? h("code", null, message.name) : null, use ? useOf(use) : null),
      content(message.content, message.role === "tool" ? "output" : "text")));
  }
  return [];
}

function useOf(use) {
  return [h("span", { class: "dim" }, seconds(use.seconds)), use.error ? h("span", { class: "mark fault" }, use.error.replace("_", " ")) : null];
}

function content(value, className) {
  if (value === null || value === undefined || value === "") return h("p", { class: "dim" }, "(nothing)");
  return block(value, className);
}

function turnItem(record, turn, n, shade, scale, tell) {
  const message = turn.message || {};
  const { sampled } = turnTokens(record, n);
  const shaded = shade !== "off" && sampled.length > 0;
  return h("li", { class: "message assistant", id: `turn-${n}` },
    h("div", { class: "who" }, h("b", null, ROLES.assistant), h("span", { class: "dim" }, facts(record, turn, n))),
    message.reasoning_content && !shaded ? h("details", { class: "reasoning", open: true }, h("summary", null, "Reasoning"), block(message.reasoning_content, "text")) : null,
    shaded ? strip(sampled, shade, scale, tell) : message.content ? block(message.content, "text") : null,
    calls(turn, message),
    !shaded && !message.content && !(turn.tool_calls || []).length ? h("p", { class: "dim" }, "(nothing)") : null);
}

function facts(record, turn, n) {
  const versions = [...new Set((turn.versions || []).map((span) => span[0]))];
  const advantage = record.advantages ? record.advantages.turns[n] : null;
  return [
    `turn ${n + 1}`, turn.token_ids && turn.token_ids.length ? `${number(turn.token_ids.length)} tokens` : "",
    versions.length ? `weights v${versions.join(", v")}` : "", turn.finish_reason === "length" ? "cut off at its limit" : "",
    turn.reward ? `reward ${number(turn.reward)}` : "", advantage !== null && advantage !== undefined ? `advantage ${number(advantage, 2)}` : "",
    turn.policy_seconds ? `model ${seconds(turn.policy_seconds)}` : "", turn.env_seconds ? `environment ${seconds(turn.env_seconds)}` : "",
  ].filter(Boolean).join(" · ");
}

function calls(turn, message) {
  const parsed = turn.tool_calls && turn.tool_calls.length ? turn.tool_calls
    : (message.tool_calls || []).map((call) => ({ id: call.id, name: (call.function || {}).name, arguments: (call.function || {}).arguments }));
  return parsed.map((call, i) => {
    const use = (turn.tool_uses || [])[i];
    return h("div", { class: "call" },
      h("div", { class: "who" }, h("span", { class: "dim" }, "calls"), h("code", null, call.name || "?"), use ? useOf(use) : null),
      call.error ? h("p", { class: "told-of" }, call.error) : null,
      call.raw ? block(call.raw, "code") : argumentsOf(call.arguments));
  });
}

function argumentsOf(given) {
  let values = given;
  if (typeof values === "string") {
    try {
      values = JSON.parse(values);
    } catch {
      return block(given, "code");
    }
  }
  if (values === null || typeof values !== "object" || Array.isArray(values)) return block(values ?? "(none)", "code");
  const names = Object.keys(values);
  if (!names.length) return h("p", { class: "dim" }, "without arguments");
  return h("dl", { class: "arguments" }, names.map((name) => [h("dt", null, plainText(name)), h("dd", null, block(values[name], "code"))]));
}

// Every token that the engine saw, row by row.
export function tokenRows(record, shade, tell) {
  const scale = scaleOf(record);
  const rows = [];
  record.episode.turns.forEach((turn, n) => {
    if (turn.kind === "text") return;
    if (turn.starts_row || !rows.length) rows.push([]);
    const { given: before, sampled } = turnTokens(record, n);
    rows[rows.length - 1].push(...before, ...sampled);
  });
  if (!rows.length) return h("p", { class: "empty" }, "This episode has messages only: an outside endpoint tells no tokens.");
  return h("div", null, rows.map((tokens, i) => h("section", { class: "token-row" },
    h("h3", null, rows.length > 1 ? `Row ${i + 1} of ${rows.length}` : "Tokens", h("span", { class: "dim" },
      ` ${number(tokens.length)} tokens, ${number(tokens.filter((token) => token.sampled).length)} written by the model`)),
    strip(tokens, shade, scale, tell))));
}
