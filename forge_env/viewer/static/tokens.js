import { button, fill, h, number } from "./dom.js";
import { plainText, visible } from "./text.js";

// Tokens, each with a colour for what is known of it, and a line that says it in words.

export const SHADES = {
  off: "no shading", logprob: "logprob", advantage: "advantage", mask: "mask", version: "weight version",
};
const FIRST_TOKENS = 3000;
const SURPRISE = [0.01, 0.1, 0.3, 0.7, 1.2, 2, 3, 5]; // upper ends of the classes of -logprob, in nats

// One entry for each token of a row or turn: {id, text, sampled, logprob, version, advantage, turn}.
export function turnTokens(record, n) {
  const turn = record.episode.turns[n];
  const texts = (record.texts || [])[n] || {};
  const advantage = record.advantages ? record.advantages.turns[n] : null;
  const versions = (turn.versions || []).flatMap(([version, count]) => Array(Math.min(count, 1e6)).fill(version));
  const given = (turn.prompt_ids || []).map((id, i) => ({ id, text: texts.prompt_ids ? texts.prompt_ids[i] : null, sampled: false, turn: n }));
  const sampled = (turn.token_ids || []).map((id, i) => ({
    id, text: texts.token_ids ? texts.token_ids[i] : null, sampled: true, turn: n, kind: turn.kind,
    logprob: (turn.logprobs || [])[i] ?? null, version: versions[i] ?? null, advantage,
  }));
  return { given, sampled };
}

function shadeClass(token, shade, scale) {
  if (shade === "mask") return token.sampled ? "mask1" : "mask0";
  if (!token.sampled) return "mask0";
  if (shade === "logprob" && typeof token.logprob === "number") {
    const place = SURPRISE.findIndex((end) => -token.logprob <= end);
    return `lp${place < 0 ? SURPRISE.length : place}`;
  }
  if (shade === "advantage" && typeof token.advantage === "number") {
    const strength = Math.min(4, Math.ceil((Math.abs(token.advantage) / scale.advantage) * 4 - 1e-9));
    return strength === 0 ? "adv0" : token.advantage > 0 ? `up${strength}` : `down${strength}`;
  }
  if (shade === "version" && token.version !== null) return `ver${scale.versions.indexOf(token.version) % 8}`;
  return "";
}

export function scaleOf(record) {
  const values = record.advantages ? record.advantages.turns.map(Math.abs) : [];
  const versions = new Set(record.episode.turns.flatMap((turn) => (turn.versions || []).map((span) => span[0])));
  return { advantage: Math.max(1, ...values), versions: [...versions].sort((a, b) => a - b) };
}

export function describe(token) {
  const parts = [`token ${token.id}`];
  if (token.text !== null) parts.push(JSON.stringify(token.text));
  if (!token.sampled) parts.push("given, not trained on");
  else if (token.kind === "tokens") parts.push("a demonstration's");
  if (typeof token.logprob === "number") {
    parts.push(`logprob ${number(token.logprob, 4)} (p ${number(Math.exp(token.logprob), 3)})`);
  } else if (token.logprob !== null && token.logprob !== undefined) parts.push(`logprob ${token.logprob}`);
  if (token.version !== null && token.version !== undefined) parts.push(`weight version ${token.version}`);
  if (token.advantage !== null && token.advantage !== undefined) parts.push(`advantage ${number(token.advantage, 4)}`);
  parts.push(`turn ${token.turn + 1}`);
  return parts.join(" · ");
}

// A run of tokens; arrows move along it, and the token under pointer or focus is told of.
export function strip(tokens, shade, scale, tell) {
  const holder = h("div", { class: "tokens", role: "group", tabindex: "0", "aria-label": "Tokens; arrows move along them" });
  let drawn = 0;
  let at = -1;
  const draw = (count) => {
    const fragment = document.createDocumentFragment();
    for (const token of tokens.slice(drawn, drawn + count)) fragment.append(tokenMark(token, shade, scale, drawn++));
    holder.append(fragment);
    if (drawn < tokens.length) {
      const more = button(`Show ${Math.min(FIRST_TOKENS, tokens.length - drawn)} more of ${tokens.length} tokens`, () => {
        more.remove();
        draw(FIRST_TOKENS);
      }, { class: "more" });
      holder.append(more);
    }
  };
  const move = (to) => {
    const spans = holder.querySelectorAll(".tok");
    if (!spans.length) return;
    if (spans[at]) spans[at].classList.remove("at");
    at = Math.max(0, Math.min(spans.length - 1, to));
    spans[at].classList.add("at");
    spans[at].scrollIntoView({ block: "nearest" });
    tell(tokens[at], true);
  };
  holder.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined || event.target !== holder) return;
    event.preventDefault();
    event.stopPropagation();
    move(at + step);
  });
  holder.addEventListener("pointerover", (event) => {
    const span = event.target.closest(".tok");
    if (span) tell(tokens[Number(span.dataset.i)], false);
  });
  holder.addEventListener("click", (event) => {
    const span = event.target.closest(".tok");
    if (span) move(Number(span.dataset.i));
  });
  draw(FIRST_TOKENS);
  return holder;
}

function tokenMark(token, shade, scale, i) {
  const span = document.createElement("span");
  span.className = `tok ${shade === "off" ? "" : shadeClass(token, shade, scale)}${token.text === null ? " id" : ""}`;
  span.dataset.i = i;
  if (token.text === null) span.append(String(token.id));
  else if (token.text === "") span.append(h("span", { class: "ctl" }, "·"));
  else {
    token.text.split("\n").forEach((line, n) => {
      if (n) span.append(h("span", { class: "ctl" }, "↵"), "\n");
      span.append(visible(line));
    });
  }
  return span;
}

export function legend(shade, scale, record) {
  const swatch = (name, text) => h("li", null, h("i", { class: `tok ${name}` }, "ab"), text);
  if (shade === "logprob") {
    const ends = ["p ≥ 0.99", "0.9", "0.74", "0.5", "0.3", "0.14", "0.05", "0.007", "less likely"];
    return h("ul", { class: "legend" }, ends.map((text, i) => swatch(`lp${i}`, text)), swatch("mask0", "given"));
  }
  if (shade === "advantage") {
    if (!record.advantages) return h("p", { class: "legend note" }, "No advantage is known: the group has no other valid episode.");
    const top = number(scale.advantage, 2);
    const source = record.advantages.source === "training"
      ? `as step ${record.advantages.step} trained on it`
      : "computed here: (reward − group mean) / standard deviation; training may have used another one";
    return h("ul", { class: "legend" }, swatch("down4", `−${top}`), swatch("down1", ""), swatch("adv0", "0"),
      swatch("up1", ""), swatch("up4", `+${top}`), swatch("mask0", "given"), h("li", { class: "note" }, source));
  }
  if (shade === "mask") {
    return h("ul", { class: "legend" }, swatch("mask1", "written by the model: trained on"), swatch("mask0", "given: masked out"));
  }
  if (shade === "version") {
    if (!scale.versions.length) return h("p", { class: "legend note" }, "No weight version is known.");
    return h("ul", { class: "legend" }, scale.versions.slice(0, 24).map((version, i) => swatch(`ver${i % 8}`, `version ${version}`)), swatch("mask0", "given"));
  }
  return null;
}

// Buttons that choose the shading, the legend, and the line about one token.
export function shadeBar(record, shade, choose) {
  const line = h("output", { class: "told", "aria-live": "polite" });
  const buttons = Object.entries(SHADES).map(([name, text]) =>
    button(text, () => choose(name), { class: "choice", "aria-pressed": name === shade ? "true" : "false" }));
  const bar = h("div", { class: "shade-bar" },
    h("div", { class: "choices", role: "group", "aria-label": "Shade tokens by" }, h("span", { class: "dim" }, "Shade by"), buttons),
    legend(shade, scaleOf(record), record), line);
  const tell = (token, loud) => {
    line.setAttribute("aria-live", loud ? "polite" : "off");
    fill(line, plainText(describe(token)));
  };
  return { bar, tell };
}
