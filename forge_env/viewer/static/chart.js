import { button, fill, h, multiples, number, roundStep, seconds, svg, timeTicks } from "./dom.js";
import { plainText } from "./text.js";

// Curves and points with intervals, as SVG.

const WIDTH = 420;
const HEIGHT = 210;
const EDGE = { left: 46, right: 12, top: 10, bottom: 36 };

export function colour(n) {
  return `var(--c${n % 8})`;
}

export function smooth(values, window) {
  if (window <= 1) return values;
  const out = [];
  const held = [];
  let sum = 0;
  for (const value of values) {
    if (value !== null) {
      held.push(value);
      sum += value;
      if (held.length > window) sum -= held.shift();
    }
    out.push(value === null || !held.length ? null : sum / held.length);
  }
  return out;
}

// Round values of an axis in few characters; of small and large ones the power of ten is said once.
function ticks(low, high, count) {
  const at = multiples(low, high, roundStep((high - low) / count));
  const size = Math.max(Math.abs(low), Math.abs(high));
  const power = size >= 0.01 && size < 10000 ? 0 : 3 * Math.floor(Math.log10(size) / 3);
  const factor = 10 ** power;
  return { at, texts: at.map((y) => number(Number((y / factor).toPrecision(6)), 4)), power };
}

function range(values, flat) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  if (low === high) return [low - flat, high + flat];
  return [low, high];
}

// One chart. lines: {name, n, dash, x: [], y: [], raw: []}; points: {name, n, x, y, interval}.
export function chart({ title, lines, points = [], axis, onRemove }) {
  const xs = [...lines.flatMap((line) => line.x), ...points.map((point) => point.x)];
  const ys = [...lines.flatMap((line) => [...(line.raw || []), ...line.y]),
    ...points.flatMap((point) => [point.y, ...(point.interval || [])])];
  const [x0, x1] = range(xs, 1);
  let [y0, y1] = range(ys, 0.5);
  if (/reward|success/.test(title) && y0 >= 0 && y1 <= 1) [y0, y1] = [0, 1]; // shares are compared on one scale
  const pad = (y1 - y0) * 0.04;
  [y0, y1] = [y0 - pad, y1 + pad];
  const px = (x) => EDGE.left + ((x - x0) / (x1 - x0)) * (WIDTH - EDGE.left - EDGE.right);
  const py = (y) => HEIGHT - EDGE.bottom - ((y - y0) / (y1 - y0)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const parts = [];
  const { at: marks, texts, power } = ticks(y0, y1, 4);
  marks.forEach((y, i) => {
    parts.push(svg("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: py(y), y2: py(y) }));
    parts.push(label(EDGE.left - 8, py(y) + 4, texts[i], "end"));
  });
  const along = axis === "time" ? timeTicks(x0, x1, 5) : multiples(x0, x1, roundStep((x1 - x0) / 5)).map((x) => ({ at: x, text: number(x) }));
  for (const { at, text } of along) parts.push(label(px(at), HEIGHT - EDGE.bottom + 16, text, "middle"));
  parts.push(label(WIDTH - EDGE.right, HEIGHT - 3, axis === "time" ? "since the start" : "step", "end"));
  for (const line of lines) {
    if (line.raw) parts.push(svg("path", { class: "raw", d: path(line.x, line.raw, px, py), stroke: colour(line.n) }));
    parts.push(svg("path", { class: `line dash${(line.dash || 0) % 3}`, d: path(line.x, line.y, px, py), stroke: colour(line.n) }));
  }
  for (const point of points) parts.push(...pointMarks(point, px, py));
  const cross = svg("line", { class: "cross", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  const what = lines.map((line) => line.name).join(", ");
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": plainText(`${title}: ${what}`) }, parts, cross);
  const read = h("div", { class: "reading", "aria-hidden": "true" });
  watch(drawing, cross, read, { lines, points, px, x0, x1, axis });
  const legend = lines.length + points.length > 1 ? legendOf(lines, points) : null;
  return h("figure", { class: "chart" },
    h("figcaption", null, h("span", { class: "chart-title" }, title, power ? h("span", { class: "dim" }, ` × 1e${power}`) : null),
      onRemove ? button("×", onRemove, { class: "quiet", title: `Take ${title} away`, "aria-label": `Take ${title} away` }) : null),
    drawing, read, legend);
}

function label(x, y, text, anchor) {
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

function path(xs, ys, px, py) {
  let out = "";
  let down = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || xs[i] === null || !Number.isFinite(ys[i])) {
      down = false;
      continue;
    }
    out += `${down ? "L" : "M"}${px(xs[i]).toFixed(1)} ${py(ys[i]).toFixed(1)}`;
    if (!down && (i + 1 >= xs.length || ys[i + 1] === null)) out += "h0.1"; // a point by itself can be seen too
    down = true;
  }
  return out || "M0 0";
}

function pointMarks(point, px, py) {
  const x = px(point.x);
  const marks = [];
  if (point.interval) {
    const [low, high] = point.interval;
    marks.push(svg("path", {
      class: "bar", stroke: colour(point.n),
      d: `M${x} ${py(low)}V${py(high)}M${x - 5} ${py(low)}h10M${x - 5} ${py(high)}h10`,
    }));
  }
  marks.push(svg("circle", { class: "dot", cx: x, cy: py(point.y), r: 4.5, fill: colour(point.n) }));
  return marks;
}

function legendOf(lines, points) {
  const seen = new Map();
  for (const each of lines) seen.set(each.name, h("i", { class: `swatch dash${(each.dash || 0) % 3}`, css: { "--swatch": colour(each.n) } }));
  for (const each of points) {
    if (!seen.has(each.name)) seen.set(each.name, h("i", { class: "swatch round", css: { "--swatch": colour(each.n) } }));
  }
  return h("ul", { class: "legend" }, [...seen].map(([name, swatch]) => h("li", null, swatch, name)));
}

let pointer = null; // where it rests: a chart that is drawn anew beneath it reads on
document.addEventListener("pointermove", (event) => { pointer = event; });
document.documentElement.addEventListener("pointerleave", () => { pointer = null; });

function watch(drawing, cross, read, { lines, points, px, x0, x1, axis }) {
  const leave = () => {
    cross.setAttribute("visibility", "hidden");
    fill(read);
  };
  const tell = ({ clientX }) => {
    const box = drawing.getBoundingClientRect();
    const place = ((clientX - box.left) / box.width) * WIDTH;
    const x = x0 + ((place - EDGE.left) / (WIDTH - EDGE.left - EDGE.right)) * (x1 - x0);
    const found = lines.map((line) => ({ line, i: nearest(line.x, x) })).filter((each) => each.i >= 0);
    if (!found.length) return leave();
    const at = found.reduce((a, b) => (Math.abs(a.line.x[a.i] - x) <= Math.abs(b.line.x[b.i] - x) ? a : b));
    const where = at.line.x[at.i];
    cross.setAttribute("x1", px(where));
    cross.setAttribute("x2", px(where));
    cross.setAttribute("visibility", "visible");
    const near = points.filter((point) => Math.abs(px(point.x) - px(where)) < 8);
    fill(read, h("b", null, axis === "time" ? seconds(where) : `step ${number(where)}`),
      found.map(({ line, i }) => h("span", null, h("i", { class: "swatch", css: { "--swatch": colour(line.n) } }),
        `${line.name} ${number((line.raw || line.y)[i], 4)}`)),
      near.map((point) => h("span", null, `${point.name} ${number(point.y)} ${interval(point.interval)}`)));
  };
  drawing.addEventListener("pointerleave", leave);
  drawing.addEventListener("pointermove", tell);
  requestAnimationFrame(() => {
    if (pointer && drawing.contains(document.elementFromPoint(pointer.clientX, pointer.clientY))) tell(pointer);
  });
}

export function interval(pair) {
  return pair ? `[${number(pair[0], 2)}, ${number(pair[1], 2)}]` : "";
}

function nearest(xs, x) {
  let best = -1;
  for (let i = 0; i < xs.length; i++) if (best < 0 || Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}
