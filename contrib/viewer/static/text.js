// Text that a model, a tool or a task has written: shown as it is, with marks for characters that cannot be seen.
// Nothing here, or anywhere in the page, turns text into markup.

const SPECIAL = /\x1b\[[0-?]*[ -/]*[@-~]|\r\n|[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
const NAMES = {
  0x00ad: "SHY", 0x061c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200e: "LRM", 0x200f: "RLM", 0x2028: "LS",
  0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI",
  0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
};
const KEPT = new Set(["\n", "\t", "\u200d"]); // U+200D joins emoji
const LATER_CHARS = 200000; // that each click on "Show more" adds

// What replaces a character that cannot be seen, or an escape sequence of a terminal.
function nameOf(characters) {
  const code = characters.codePointAt(0);
  if (characters.length > 1 && code === 0x1b) return `\u241b${characters.slice(1)}`;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return NAMES[code] || unicodeOf(characters);
}

function unicodeOf(characters) {
  return `U+${characters.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

// The text as a string, for titles and labels.
export function plainText(value) {
  return String(value).replace(SPECIAL, (characters) => {
    if (characters === "\r\n") return "\n";
    return KEPT.has(characters) ? characters : nameOf(characters);
  });
}

// The text as a fragment, in which characters that cannot be seen are small marks.
export function visible(value) {
  const text = String(value);
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(SPECIAL)) {
    const characters = match[0];
    if (KEPT.has(characters)) continue;
    fragment.append(text.slice(end, match.index));
    end = match.index + characters.length;
    if (characters === "\r\n") {
      fragment.append("\n");
      continue;
    }
    const mark = document.createElement("span");
    mark.className = "ctl";
    mark.textContent = nameOf(characters);
    mark.title = `${unicodeOf(characters)}, which cannot be seen`;
    fragment.append(mark);
  }
  fragment.append(text.slice(end));
  return fragment;
}

// A block of text. A long one shows its beginning and a button for more.
export function block(value, className, { chars = 6000, lines = 60 } = {}) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const pre = document.createElement("pre");
  pre.className = className || "text";
  let shown = firstLength(text, chars, lines);
  pre.append(visible(text.slice(0, shown)));
  if (shown === text.length) return pre;
  const holder = document.createElement("div");
  const more = document.createElement("button");
  more.type = "button";
  more.className = "more";
  const label = () => `Show ${size(Math.min(text.length - shown, LATER_CHARS))} more of ${size(text.length)}`;
  more.textContent = label();
  more.addEventListener("click", () => {
    const next = Math.min(text.length, shown + LATER_CHARS);
    pre.append(visible(text.slice(shown, next)));
    shown = next;
    if (shown >= text.length) more.remove();
    else more.textContent = label();
  });
  holder.append(pre, more);
  return holder;
}

// The characters that are shown at first: all of a text that is only a little longer than the limits.
function firstLength(text, chars, lines) {
  let length = Math.min(text.length, chars);
  let lineEnd = -1;
  for (let n = 0; n < lines && (lineEnd = text.indexOf("\n", lineEnd + 1)) >= 0; n++);
  if (lineEnd >= 0) length = Math.min(length, lineEnd);
  return text.length - length < 200 ? text.length : length;
}

function size(characters) {
  return characters < 1000 ? `${characters} characters` : `${(characters / 1000).toFixed(0)} k characters`;
}
