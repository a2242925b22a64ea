import { button, fill, h } from "./dom.js";
import { number } from "./numbers.js";
import { plainText, visible } from "./text.js";

// Tokens, each shaded by one of its values, and a line that says all values of one token.

export const SHADES = {
  off: "no shading", logprob: "logprob", advantage: "advantage", mask: "mask", version: "weight version",
};
const TOKENS_AT_A_TIME = 3000;
const NOT_SAMPLED = -1; // the version of tokens that the agent inserted
const SURPRISE = [0.01, 0.1, 0.3, 0.7, 1.2, 2, 3, 5]; // upper bounds of the classes of -logprob, in nats
const PROBABILITIES = ["p ≥ 0.99", "0.9", "0.74", "0.5", "0.3", "0.14", "0.05", "0.007", "less likely"];

// One entry for each token of a turn: {id, text, sampled, logprob, version, advantage, turn}.
export function turnTokens(detail, n) {
  const turn = detail.episode.turns[n];
  const texts = (detail.texts || [])[n] || {};
  const advantage = detail.advantages ? detail.advantages.turns[n] : null;
  const versions = (turn.versions || []).flatMap(([version, count]) => Array(Math.min(count, 1e6)).fill(version));
  const prompt = (turn.prompt_ids || []).map((id, i) => ({
    id, text: texts.prompt_ids ? texts.prompt_ids[i] : null, sampled: false, turn: n,
  }));
  const sampled = (turn.token_ids || []).map((id, i) => ({
    id, text: texts.token_ids ? texts.token_ids[i] : null, turn: n, kind: turn.kind,
    sampled: versions[i] !== NOT_SAMPLED, learned: versions[i] !== NOT_SAMPLED && !turn.auxiliary,
    logprob: (turn.logprobs || [])[i] ?? null, version: versions[i] ?? null, advantage,
  }));
  return { prompt, sampled };
}

// The largest advantage and all weight versions of an episode, by which its tokens are shaded.
export function shadeScale(detail) {
  const advantages = detail.advantages ? detail.advantages.turns.map(Math.abs) : [];
  const spans = detail.episode.turns.flatMap((turn) => turn.versions || []);
  const versions = [...new Set(spans.map(([version]) => version))].filter((v) => v !== NOT_SAMPLED).sort((a, b) => a - b);
  return { advantage: Math.max(1, ...advantages), versions };
}

function shadeClass(token, shade, scale) {
  if (shade === "off") return "";
  if (shade === "mask") return token.learned ? "mask1" : "mask0";
  if (!token.sampled) return "mask0";
  if (shade === "logprob" && typeof token.logprob === "number") {
    const level = SURPRISE.findIndex((bound) => -token.logprob <= bound);
    return `lp${level < 0 ? SURPRISE.length : level}`;
  }
  if (shade === "advantage" && typeof token.advantage === "number") {
    const level = Math.min(4, Math.ceil((Math.abs(token.advantage) / scale.advantage) * 4 - 1e-9));
    return level === 0 ? "adv0" : token.advantage > 0 ? `up${level}` : `down${level}`;
  }
  if (shade === "version" && token.version !== null) return `ver${scale.versions.indexOf(token.version) % 8}`;
  return "";
}

function describeToken(token) {
  const { logprob, version, advantage } = token;
  const isKnown = (value) => value !== null && value !== undefined;
  const probability = typeof logprob === "number" ? ` (p ${number(Math.exp(logprob), 3)})` : "";
  return [
    `token ${token.id}`,
    token.text === null ? "" : JSON.stringify(token.text),
    token.sampled ? (token.kind === "tokens" ? "demonstration" : "") : "input, not trained on",
    token.sampled && !token.learned ? "auxiliary, not trained on" : "",
    isKnown(logprob) ? `logprob ${number(logprob, 4)}${probability}` : "",
    isKnown(version) ? `weight version ${version}` : "",
    isKnown(advantage) ? `advantage ${number(advantage, 4)}` : "",
    `turn ${token.turn + 1}`,
  ].filter(Boolean).join(" · ");
}

// A run of tokens. The arrow keys move along it; `describe` gets the token under the pointer or the focus.
export function tokenStrip(tokens, shade, scale, describe) {
  const label = "Tokens; the arrow keys move along them";
  const strip = h("div", { class: "tokens", role: "group", tabindex: "0", "aria-label": label });
  let drawn = 0;
  let at = -1;
  const drawMore = () => {
    const fragment = document.createDocumentFragment();
    for (const token of tokens.slice(drawn, drawn + TOKENS_AT_A_TIME)) {
      fragment.append(tokenMark(token, shadeClass(token, shade, scale), drawn++));
    }
    strip.append(fragment);
    if (drawn < tokens.length) {
      const count = Math.min(TOKENS_AT_A_TIME, tokens.length - drawn);
      const more = button(`Show ${count} more of ${tokens.length} tokens`, () => {
        more.remove();
        drawMore();
      }, { class: "more" });
      strip.append(more);
    }
  };
  const moveTo = (i) => {
    const marks = strip.querySelectorAll(".tok");
    if (!marks.length) return;
    if (marks[at]) marks[at].classList.remove("at");
    at = Math.max(0, Math.min(marks.length - 1, i));
    marks[at].classList.add("at");
    marks[at].scrollIntoView({ block: "nearest" });
    describe(tokens[at], true);
  };
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined || event.target !== strip) return;
    event.preventDefault();
    event.stopPropagation();
    moveTo(at + step);
  });
  strip.addEventListener("pointerover", (event) => {
    const mark = event.target.closest(".tok");
    if (mark) describe(tokens[Number(mark.dataset.i)], false);
  });
  strip.addEventListener("click", (event) => {
    const mark = event.target.closest(".tok");
    if (mark) moveTo(Number(mark.dataset.i));
  });
  drawMore();
  return strip;
}

function tokenMark(token, kind, i) {
  const mark = document.createElement("span");
  mark.className = `tok ${kind}${token.text === null ? " id" : ""}`;
  mark.dataset.i = i;
  if (token.text === null) mark.append(String(token.id));
  else if (token.text === "") mark.append(h("span", { class: "ctl" }, "·"));
  else {
    token.text.split("\n").forEach((line, n) => {
      if (n) mark.append(h("span", { class: "ctl" }, "↵"), "\n");
      mark.append(visible(line));
    });
  }
  return mark;
}

// The buttons that choose the shading, its legend, and the line that describes a token.
export function shadeBar(detail, shade, onChoose) {
  const line = h("output", { class: "token-line", "aria-live": "polite" });
  const buttons = Object.entries(SHADES).map(([name, text]) =>
    button(text, () => onChoose(name), { class: "choice", "aria-pressed": name === shade ? "true" : "false" }));
  const bar = h("div", { class: "shade-bar" },
    h("div", { class: "choices", role: "group", "aria-label": "Shade tokens by" },
      h("span", { class: "dim" }, "Shade by"), buttons),
    shadeLegend(shade, shadeScale(detail), detail), line);
  const describe = (token, isSpoken) => {
    line.setAttribute("aria-live", isSpoken ? "polite" : "off");
    fill(line, plainText(describeToken(token)));
  };
  return { bar, describe };
}

function shadeLegend(shade, scale, detail) {
  const item = (kind, text) => h("li", null, h("i", { class: `tok ${kind}` }, "ab"), text);
  const note = (text) => h("p", { class: "legend note" }, text);
  const input = item("mask0", "input");
  if (shade === "logprob") {
    return h("ul", { class: "legend" }, PROBABILITIES.map((text, level) => item(`lp${level}`, text)), input);
  }
  if (shade === "advantage") {
    if (!detail.advantages) return note("No advantage is known: the group has no other valid episode.");
    const largest = number(scale.advantage, 2);
    return h("ul", { class: "legend" }, item("down4", `−${largest}`), item("down1", ""), item("adv0", "0"),
      item("up1", ""), item("up4", `+${largest}`), input,
      h("li", { class: "note" }, detail.advantages.source === "training"
        ? `as used at step ${detail.advantages.step}`
        : "computed here: (reward − group mean) / standard deviation; training may have used another one"));
  }
  if (shade === "mask") {
    return h("ul", { class: "legend" }, item("mask1", "generated: trained on"), item("mask0", "input: not trained on"));
  }
  if (shade === "version") {
    if (!scale.versions.length) return note("No weight version is known.");
    const versions = scale.versions.slice(0, 24);
    return h("ul", { class: "legend" }, versions.map((version, i) => item(`ver${i % 8}`, `version ${version}`)), input);
  }
  return null;
}
