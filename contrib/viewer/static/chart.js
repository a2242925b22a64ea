import { button, fill, h, svg } from "./dom.js";
import { interval, multiples, number, roundStep, seconds, timeTicks, valueTicks } from "./numbers.js";
import { plainText } from "./text.js";

// Charts as SVG: lines, and points with intervals. The values under the pointer are written below the chart.

const WIDTH = 420;
const HEIGHT = 210;
const EDGE = { left: 46, right: 12, top: 10, bottom: 36 };
const INNER_WIDTH = WIDTH - EDGE.left - EDGE.right;
const INNER_HEIGHT = HEIGHT - EDGE.top - EDGE.bottom;

export function colour(n) {
  return `var(--c${n % 8})`;
}

// Each value is replaced by the mean of it and of those before it; null stays null.
export function runningMean(values, window) {
  if (window <= 1) return values;
  const means = [];
  const recent = [];
  let sum = 0;
  for (const value of values) {
    if (value !== null) {
      recent.push(value);
      sum += value;
      if (recent.length > window) sum -= recent.shift();
    }
    means.push(value === null || !recent.length ? null : sum / recent.length);
  }
  return means;
}

// One chart. lines: {name, n, dash, x: [], y: [], raw: []}; points: {name, n, x, y, interval}; n chooses the colour.
export function chart({ title, note, lines, points = [], axis, onRemove }) {
  const scale = scaleFor(title, lines, points);
  const ticks = valueTicks(...scale.yRange, 4);
  const cross = svg("line", { class: "cross", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  const label = plainText(`${title}: ${lines.map((line) => line.name).join(", ")}`);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    axesMarks(scale, ticks, axis), lines.map((line) => lineMarks(line, scale)),
    points.map((point) => pointMarks(point, scale)), cross);
  const readout = h("div", { class: "readout", "aria-hidden": "true" });
  showValuesAtPointer(drawing, cross, readout, { lines, points, scale, axis });
  return h("figure", { class: "chart" },
    h("figcaption", null,
      h("span", { class: "chart-title" }, title,
        ticks.power ? h("span", { class: "dim" }, ` × 1e${ticks.power}`) : null),
      onRemove ? removeButton(title, onRemove) : null),
    drawing, readout, lines.length + points.length > 1 ? legendOf(lines, points) : null,
    note ? h("p", { class: "note" }, note) : null);
}

function removeButton(title, onRemove) {
  return button("×", onRemove, { class: "quiet", title: `Remove ${title}`, "aria-label": `Remove ${title}` });
}

// {x, y}: functions from values to places in the drawing; {xRange, yRange}: the ends of the axes.
function scaleFor(title, lines, points) {
  const xs = [...lines.flatMap((line) => line.x), ...points.map((point) => point.x)];
  const ys = [
    ...lines.flatMap((line) => [...(line.raw || []), ...line.y]),
    ...points.flatMap((point) => [point.y, ...(point.interval || [])]),
  ];
  const [x0, x1] = rangeOf(xs, 1);
  let [y0, y1] = rangeOf(ys, 0.5);
  if (/reward|success/.test(title) && y0 >= 0 && y1 <= 1) [y0, y1] = [0, 1]; // shares have one scale
  const pad = (y1 - y0) * 0.04;
  [y0, y1] = [y0 - pad, y1 + pad];
  return {
    x: (value) => EDGE.left + ((value - x0) / (x1 - x0)) * INNER_WIDTH,
    y: (value) => EDGE.top + ((y1 - value) / (y1 - y0)) * INNER_HEIGHT,
    xRange: [x0, x1], yRange: [y0, y1],
  };
}

function rangeOf(values, margin) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  return low === high ? [low - margin, high + margin] : [low, high];
}

function axesMarks(scale, ticks, axis) {
  const [x0, x1] = scale.xRange;
  const xTicks = axis === "time" ? timeTicks(x0, x1, 5)
    : multiples(x0, x1, roundStep((x1 - x0) / 5)).map((x) => ({ at: x, text: number(x) }));
  return [
    ticks.values.map((value, i) => {
      const y = scale.y(value);
      return [svg("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y, y2: y }),
        textMark(EDGE.left - 8, y + 4, ticks.texts[i], "end")];
    }),
    xTicks.map(({ at, text }) => textMark(scale.x(at), HEIGHT - EDGE.bottom + 16, text, "middle")),
    textMark(WIDTH - EDGE.right, HEIGHT - 3, axis === "time" ? "since the start" : "step", "end"),
  ];
}

function textMark(x, y, text, anchor) {
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

function lineMarks(line, scale) {
  const stroke = colour(line.n);
  const kind = `line dash${(line.dash || 0) % 3}`;
  return [
    line.raw ? svg("path", { class: "raw", d: pathOf(line.x, line.raw, scale), stroke }) : null,
    svg("path", { class: kind, d: pathOf(line.x, line.y, scale), stroke }),
  ];
}

function pathOf(xs, ys, scale) {
  let path = "";
  let isDown = false; // whether the pen is on the paper
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || xs[i] === null || !Number.isFinite(ys[i])) {
      isDown = false;
      continue;
    }
    path += `${isDown ? "L" : "M"}${scale.x(xs[i]).toFixed(1)} ${scale.y(ys[i]).toFixed(1)}`;
    if (!isDown && (i + 1 >= xs.length || ys[i + 1] === null)) path += "h0.1"; // a single point is visible too
    isDown = true;
  }
  return path || "M0 0";
}

function pointMarks(point, scale) {
  const x = scale.x(point.x);
  const dot = svg("circle", { class: "dot", cx: x, cy: scale.y(point.y), r: 4.5, fill: colour(point.n) });
  if (!point.interval) return [dot];
  const [low, high] = point.interval.map(scale.y);
  const d = `M${x} ${low}V${high}M${x - 5} ${low}h10M${x - 5} ${high}h10`;
  return [svg("path", { class: "bar", stroke: colour(point.n), d }), dot];
}

function legendOf(lines, points) {
  const swatches = new Map();
  for (const line of lines) swatches.set(line.name, swatch(line.n, `dash${(line.dash || 0) % 3}`));
  for (const point of points) if (!swatches.has(point.name)) swatches.set(point.name, swatch(point.n, "round"));
  return h("ul", { class: "legend" }, [...swatches].map(([name, mark]) => h("li", null, mark, name)));
}

export function swatch(n, kind = "") {
  return h("i", { class: `swatch ${kind}`, css: { "--swatch": colour(n) } });
}

let pointer = null; // the last place of the pointer: a chart that is redrawn below it shows its values again
document.addEventListener("pointermove", (event) => { pointer = event; });
document.documentElement.addEventListener("pointerleave", () => { pointer = null; });

function showValuesAtPointer(drawing, cross, readout, { lines, points, scale, axis }) {
  const hide = () => {
    cross.setAttribute("visibility", "hidden");
    fill(readout);
  };
  const show = ({ clientX }) => {
    const box = drawing.getBoundingClientRect();
    const [x0, x1] = scale.xRange;
    const x = x0 + ((((clientX - box.left) / box.width) * WIDTH - EDGE.left) / INNER_WIDTH) * (x1 - x0);
    const nearest = lines.map((line) => ({ line, i: nearestIndex(line.x, x) })).filter(({ i }) => i >= 0);
    if (!nearest.length) return hide();
    const distance = ({ line, i }) => Math.abs(line.x[i] - x);
    const closest = nearest.reduce((a, b) => (distance(a) <= distance(b) ? a : b));
    const at = closest.line.x[closest.i];
    cross.setAttribute("x1", scale.x(at));
    cross.setAttribute("x2", scale.x(at));
    cross.setAttribute("visibility", "visible");
    const near = points.filter((point) => Math.abs(scale.x(point.x) - scale.x(at)) < 8);
    const valueOf = ({ line, i }) => number((line.raw || line.y)[i], 4);
    fill(readout, h("b", null, axis === "time" ? seconds(at) : `step ${number(at)}`),
      nearest.map((item) => h("span", null, swatch(item.line.n), `${item.line.name} ${valueOf(item)}`)),
      near.map((point) => h("span", null, `${point.name} ${number(point.y)} ${interval(point.interval)}`)));
  };
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("pointermove", show);
  requestAnimationFrame(() => {
    if (pointer && drawing.contains(document.elementFromPoint(pointer.clientX, pointer.clientY))) show(pointer);
  });
}

function nearestIndex(xs, x) {
  let best = -1;
  for (let i = 0; i < xs.length; i++) if (best < 0 || Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}
