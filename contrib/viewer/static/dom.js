import { number } from "./numbers.js";
import { plainText, visible } from "./text.js";

// DOM elements, made one by one. Strings become text nodes; a link leads to a place in this page only.

const ATTRIBUTES = new Set([
  "role", "href", "title", "type", "value", "placeholder", "tabindex", "id", "scope", "autocomplete", "spellcheck",
  "open", "selected", "checked", "data-label",
]);

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === "css") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    } else if (name === "href" && !String(value).startsWith("#")) throw new Error("a link leads to this page only");
    else if (ATTRIBUTES.has(name) || name.startsWith("aria-")) {
      element.setAttribute(name, value === true ? "" : name === "href" ? value : plainText(value));
    } else throw new Error(`the attribute ${name} is not allowed`);
  }
  return append(element, children);
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on") || name.includes("href")) throw new Error(`the attribute ${name} is not allowed`);
    element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) if (child !== null) element.append(child);
  return element;
}

export function button(label, onClick, props) {
  return h("button", { type: "button", ...props, on: { click: onClick } }, label);
}

export function copyButton(label, text) {
  const element = button(label, async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { "aria-hidden": "true", class: "hidden-text" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    fill(element, "Copied");
    setTimeout(() => fill(element, label), 1500);
  });
  return element;
}

const MAX_PHONE_COLUMNS = 4;

// A table; `columns` are [heading, class of its cells], `rows` are lists of contents. On a phone a row of many columns is
// a list, in which each cell stands beside its heading.
export function table(columns, rows) {
  const kind = columns.length > MAX_PHONE_COLUMNS ? "list stacked" : "list";
  return h("div", { class: "scroll" }, h("table", { class: kind },
    h("thead", null, h("tr", null, columns.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
    h("tbody", null, rows.map((row) => h("tr", null,
      row.map((content, i) => h("td", { class: columns[i][1], "data-label": columns[i][0] }, content)))))));
}

export const OUTCOMES = {
  scored: "Scored", truncated: "Cut off", model_fault: "Model fault", timeout: "Time-out",
  env_fault: "Environment fault", infra_fault: "Infrastructure fault",
};

// The reward of an episode with a colour for its success, or "fault" or "time-out" where there is no reward.
export function rewardMark(row) {
  const outcome = OUTCOMES[row.outcome] || row.outcome;
  if (row.reward === null || row.reward === undefined) {
    const isTimeout = row.outcome === "timeout";
    const [kind, text] = isTimeout ? ["late", "time-out"] : ["fault", "fault"];
    return h("span", { class: `mark ${kind}`, title: outcome }, text);
  }
  const kind = row.success ? "good" : row.reward > 0 ? "some" : "none";
  const text = `${kind === "good" ? "✓ " : ""}${number(row.reward)}`;
  return h("span", { class: `mark ${kind}`, title: `reward ${row.reward}, ${outcome}` }, text);
}

// Tells screen readers.
export function announce(text) {
  document.getElementById("live").textContent = plainText(text);
}
