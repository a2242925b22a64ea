import { plainText, visible } from "./text.js";

// Elements, made one by one. Strings become text nodes; a link leads to a place in this page only.

const ATTRIBUTES = new Set([
  "role", "href", "title", "type", "value", "placeholder", "tabindex", "id", "for", "min", "max", "step", "name",
  "scope", "colspan", "autocomplete", "spellcheck", "open", "selected", "checked", "disabled", "hidden",
]);

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "css") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else if (name === "href" && !String(value).startsWith("#")) throw new Error("a link leads to this page only");
    else if (ATTRIBUTES.has(name) || name.startsWith("aria-")) {
      element.setAttribute(name, value === true ? "" : name === "href" ? value : plainText(value));
    } else throw new Error(`the attribute ${name} is not allowed`);
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
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

export function number(value, digits = 3) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size >= 0.001) return String(Number(value.toPrecision(digits)));
  return value.toExponential(1);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(0)} days`;
}

const TIME_STEPS = [15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400]; // seconds

// Times of an axis at equal distances, in one unit: {at: seconds, text}.
export function timeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const step = raw <= 10 ? roundStep(raw) : TIME_STEPS.find((each) => each >= raw * 0.999) || roundStep(raw / 86400) * 86400;
  const [unit, name] = step < 60 ? [1, "s"] : step < 3600 ? [60, "min"] : step < 86400 ? [3600, "h"] : [86400, "days"];
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / unit) + 1e-9)));
  return multiples(low, high, step).map((at) => ({ at, text: `${(at / unit).toLocaleString("en", { maximumFractionDigits: digits })} ${name}` }));
}

// The least of 1, 2 and 5 times a power of ten that is not below a number.
export function roundStep(raw) {
  const base = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((k) => k * base).find((each) => each >= raw * 0.999) || 10 * base;
}

export function multiples(low, high, step) {
  const out = [];
  if (!(step > 0) || !Number.isFinite(low / step)) return out;
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9 && out.length < 50; n++) out.push(n * step || 0); // never -0
  return out;
}

export function button(label, act, props) {
  return h("button", { type: "button", ...props, on: { click: act } }, label);
}

export function copyButton(label, text) {
  const made = button(label, async () => {
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
    fill(made, "Copied");
    setTimeout(() => fill(made, label), 1500);
  });
  return made;
}

export const OUTCOMES = {
  scored: "Scored", truncated: "Cut off", model_fault: "Model fault", timeout: "Time-out",
  env_fault: "Environment fault", infra_fault: "Infrastructure fault",
};

// The reward as a number with a bar, or the outcome where there is none.
export function rewardMark(row) {
  if (row.reward === null || row.reward === undefined) {
    const late = row.outcome === "timeout";
    return h("span", { class: `mark ${late ? "late" : "fault"}`, title: OUTCOMES[row.outcome] || row.outcome }, late ? "time-out" : "fault");
  }
  const kind = row.success ? "good" : row.reward > 0 ? "some" : "none";
  const sign = kind === "good" ? "✓ " : "";
  return h("span", { class: `mark ${kind}`, title: `reward ${row.reward}, ${OUTCOMES[row.outcome] || row.outcome}` },
    `${sign}${number(row.reward)}`);
}

export function say(text) {
  document.getElementById("live").textContent = plainText(text);
}
