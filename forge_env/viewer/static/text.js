// Text that a model, a tool or a task has written: shown as it is, and what cannot be seen made visible.
// Nothing here, or anywhere in the page, turns text into markup.

const SEQUENCE = /\x1b\[[0-?]*[ -/]*[@-~]|\r\n|[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
const NAMES = {
  0x00ad: "SHY", 0x061c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200e: "LRM", 0x200f: "RLM", 0x2028: "LS",
  0x2029: "PS", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI",
  0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
};
const KEPT = new Set(["\n", "\t", "\u200d"]); // the joiner holds emoji together

// What stands in the place of a character that cannot be seen, or a terminal's escape sequence.
function badge(found) {
  const code = found.codePointAt(0);
  if (found.length > 1 && code === 0x1b) return `\u241b${found.slice(1)}`;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return NAMES[code] || `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// The same text as a string, for titles and labels.
export function plainText(value) {
  return String(value).replace(SEQUENCE, (found) => (KEPT.has(found) ? found : found === "\r\n" ? "\n" : badge(found)));
}

// A fragment with the text; invisible characters are little marks.
export function visible(value) {
  const text = String(value);
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    const found = match[0];
    if (KEPT.has(found)) continue;
    fragment.append(text.slice(end, match.index));
    end = match.index + found.length;
    if (found === "\r\n") {
      fragment.append("\n");
      continue;
    }
    const mark = document.createElement("span");
    mark.className = "ctl";
    mark.textContent = badge(found);
    mark.title = `U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}, which cannot be seen`;
    fragment.append(mark);
  }
  fragment.append(text.slice(end));
  return fragment;
}

// A block of text; a long one is folded, and opens on demand.
export function block(value, className, { chars = 6000, lines = 60 } = {}) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const pre = document.createElement("pre");
  pre.className = className || "text";
  let cut = Math.min(text.length, chars);
  let place = -1;
  for (let n = 0; n < lines && (place = text.indexOf("\n", place + 1)) >= 0; n++);
  if (place >= 0) cut = Math.min(cut, place);
  if (text.length - cut < 200) cut = text.length;
  pre.append(visible(text.slice(0, cut)));
  if (cut === text.length) return pre;
  const holder = document.createElement("div");
  const more = document.createElement("button");
  more.type = "button";
  more.className = "more";
  let shown = cut;
  const label = () => `Show ${size(Math.min(text.length - shown, 200000))} more of ${size(text.length)}`;
  more.textContent = label();
  more.addEventListener("click", () => {
    const next = Math.min(text.length, shown + 200000);
    pre.append(visible(text.slice(shown, next)));
    shown = next;
    if (shown >= text.length) more.remove();
    else more.textContent = label();
  });
  holder.append(pre, more);
  return holder;
}

export function size(characters) {
  return characters < 1000 ? `${characters} characters` : `${(characters / 1000).toFixed(0)} k characters`;
}
