import { h } from "./dom.js";
import { number, seconds } from "./numbers.js";
import { rowMarks } from "./rows.js";
import { block, plainText } from "./text.js";
import { shadeScale, tokenStrip, turnTokens } from "./tokens.js";

// An episode as a conversation: messages, tool calls and tool output; and as rows of tokens.

const ROLES = { system: "System", user: "User", assistant: "Model", tool: "Tool" };

export function conversation(detail, shade, describe) {
  return h("ol", { class: "conversation" }, messagesByTurn(detail, shade, describe));
}

// The elements of each turn, and then those of the messages after the last one.
function messagesByTurn(detail, shade, describe) {
  const { turns, tail } = detail.episode;
  const scale = shadeScale(detail);
  const list = [];
  let toolUses = []; // of the turn before
  turns.forEach((turn, n) => {
    const elements = [];
    const row = (detail.rows || []).findIndex(({ first }) => first === n);
    if (row >= 0) {
      elements.push(h("li", { class: "break", id: `row-${row}`, tabindex: "-1" },
        h("div", { class: "row-line" }, h("b", null, `Row ${row + 1}`), rowMarks(detail.rows[row]))));
    } else if (n > 0 && turn.starts_row && turn.kind !== "text") {
      elements.push(h("li", { class: "break" }, "A new row of tokens starts here."));
    }
    const messages = [...inputMessages(turn.observation || [], toolUses),
      modelMessage(detail, turn, n, shade, scale, describe)];
    if (turn.auxiliary) messages.forEach((message) => message.classList.add("auxiliary"));
    list.push([...elements, ...messages]);
    toolUses = turn.tool_uses || [];
  });
  const last = inputMessages(tail || [], toolUses);
  return last.length ? [...list, last] : list;
}

// Episodes beside each other, turn by turn. sides: [{detail, head, mark}]; the detail is null if it is not there.
export function sideBySide(sides) {
  const columns = sides.map(({ detail }) => (detail ? messagesByTurn(detail, "off", () => {}) : []));
  const apart = sides.length === 2 && sides.every(({ detail }) => detail) ? firstDifference(sides) : null;
  const cell = (side, content) => h("div", { class: "side" },
    h("span", { class: "side-mark", "aria-label": `Side ${side.mark}` }, side.mark), content);
  const rows = Array.from({ length: Math.max(...columns.map((column) => column.length)) }, (_, n) => [
    apart && apart.turn === n ? h("p", { class: "apart" }, `The first difference: ${apart.what} of turn ${n + 1}`) : null,
    h("div", { class: "sides" }, sides.map((side, i) => cell(side, columns[i][n]
      ? h("ol", { class: "conversation" }, columns[i][n])
      : h("p", { class: "dim" }, side.detail ? `It ended after ${columns[i].length} turns.` : "")))),
  ]);
  return h("div", { class: "aligned" },
    h("div", { class: "sides" }, sides.map((side) => cell(side, h("p", null, side.head)))), rows);
}

// The first turn in which two episodes differ, and what differs; null for equal conversations.
function firstDifference(sides) {
  const [a, b] = sides.map(({ detail }) => detail.episode.turns);
  const isSame = (x, y) => JSON.stringify(x ?? null) === JSON.stringify(y ?? null);
  for (let turn = 0; turn < Math.max(a.length, b.length); turn++) {
    if (!a[turn] || !b[turn]) return { turn, what: "one episode lacks the messages" };
    if (!isSame(a[turn].observation, b[turn].observation)) return { turn, what: "the input" };
    if (!isSame(a[turn].message, b[turn].message)) return { turn, what: "the model's answer" };
  }
  return null;
}

// The messages of the environment. Its tool messages answer the tool calls of the turn before, in their order.
function inputMessages(messages, toolUses) {
  const uses = [...toolUses];
  return messages.map((message) => {
    const use = message.role === "tool" ? uses.shift() : null;
    return h("li", { class: `message ${ROLES[message.role] ? message.role : "other"}` },
      h("div", { class: "message-head" }, h("b", null, ROLES[message.role] || message.role),
        message.name ? h("code", null, message.name) : null, use ? toolUseMarks(use) : null),
      contentOf(message.content, message.role === "tool" ? "output" : "text"));
  });
}

function toolUseMarks(use) {
  return [
    h("span", { class: "dim" }, seconds(use.seconds)),
    use.error ? h("span", { class: "mark fault" }, use.error.replace("_", " ")) : null,
  ];
}

function contentOf(value, className) {
  if (value === null || value === undefined || value === "") return h("p", { class: "dim" }, "(empty)");
  return block(value, className);
}

function modelMessage(detail, turn, n, shade, scale, describe) {
  const message = turn.message || {};
  const { sampled } = turnTokens(detail, n);
  const isShaded = shade !== "off" && sampled.length > 0;
  const isEmpty = !isShaded && !message.content && !(turn.tool_calls || []).length;
  return h("li", { class: "message assistant", id: `turn-${n}` },
    h("div", { class: "message-head" }, h("b", null, ROLES.assistant),
      h("span", { class: "dim" }, turnFacts(detail, turn, n))),
    message.reasoning_content && !isShaded ? h("details", { class: "reasoning", open: true },
      h("summary", null, "Reasoning"), block(message.reasoning_content, "text")) : null,
    isShaded ? tokenStrip(sampled, shade, scale, describe) : message.content ? block(message.content, "text") : null,
    toolCalls(turn, message),
    isEmpty ? h("p", { class: "dim" }, "(empty)") : null);
}

function turnFacts(detail, turn, n) {
  const versions = [...new Set((turn.versions || []).map(([version]) => version))].filter((v) => v >= 0);
  const advantage = detail.advantages ? detail.advantages.turns[n] : null;
  const hasAdvantage = advantage !== null && advantage !== undefined;
  return [
    `turn ${n + 1}`,
    turn.auxiliary ? `auxiliary, not trained on: ${turn.auxiliary}` : "",
    turn.token_ids && turn.token_ids.length ? `${number(turn.token_ids.length)} tokens` : "",
    versions.length ? `weights v${versions.join(", v")}` : "",
    turn.is_summary ? "a summary in the place of the turns before" : "",
    turn.finish_reason === "length" ? "cut off at its limit" : "",
    turn.reward ? `reward ${number(turn.reward)}` : "",
    hasAdvantage ? `advantage ${number(advantage, 2)}` : "",
    turn.policy_seconds ? `model ${seconds(turn.policy_seconds)}` : "",
    turn.env_seconds ? `environment ${seconds(turn.env_seconds)}` : "",
  ].filter(Boolean).join(" · ");
}

function toolCalls(turn, message) {
  const fromMessage = (message.tool_calls || []).map(({ function: called }) => {
    const { name, arguments: args } = called || {};
    return { name, arguments: args };
  });
  return (turn.tool_calls && turn.tool_calls.length ? turn.tool_calls : fromMessage).map((call, i) => {
    const use = (turn.tool_uses || [])[i];
    return h("div", { class: "call" },
      h("div", { class: "message-head" }, h("span", { class: "dim" }, "calls"), h("code", null, call.name || "?"),
        use ? toolUseMarks(use) : null),
      call.error ? h("p", { class: "problem" }, call.error) : null,
      call.raw ? block(call.raw, "code") : argumentList(call.arguments));
  });
}

function argumentList(args) {
  let values = args;
  if (typeof values === "string") {
    try {
      values = JSON.parse(values);
    } catch {
      return block(args, "code");
    }
  }
  if (values === null || typeof values !== "object" || Array.isArray(values)) return block(values ?? "(none)", "code");
  const names = Object.keys(values);
  if (!names.length) return h("p", { class: "dim" }, "without arguments");
  return h("dl", { class: "arguments" },
    names.map((name) => [h("dt", null, plainText(name)), h("dd", null, block(values[name], "code"))]));
}

// All tokens that the engine saw, row by row.
export function tokenRows(detail, shade, describe) {
  const scale = shadeScale(detail);
  const rows = [];
  detail.episode.turns.forEach((turn, n) => {
    if (turn.kind === "text") return;
    if (turn.starts_row || !rows.length) rows.push([]);
    const { prompt, sampled } = turnTokens(detail, n);
    rows[rows.length - 1].push(...prompt, ...sampled);
  });
  if (!rows.length) {
    return h("p", { class: "empty" }, "This episode has messages only: its model endpoint returns no tokens.");
  }
  return h("div", null, rows.map((tokens, i) => {
    const sampled = tokens.filter((token) => token.sampled).length;
    return h("section", { class: "token-row" },
      h("h3", null, rows.length > 1 ? `Row ${i + 1} of ${rows.length}` : "Tokens",
        h("span", { class: "dim" }, ` ${number(tokens.length)} tokens, ${number(sampled)} generated`)),
      tokenStrip(tokens, shade, scale, describe));
  }));
}
