import { ask } from "./api.js";
import { button, fill, h, number, seconds, svg, timeTicks } from "./dom.js";
import { setParams } from "./lists.js";
import { plainText } from "./text.js";

// The timeline of a run: its spans in lanes; dragging, the wheel or the keys + - choose the part that is shown.

const WIDE = 1000;
const GAP = 10;

export async function showTimeline(main, route, context) {
  const window_ = { from: route.params.from, to: route.params.to };
  const timeline = await ask(`${context.run.number}/timeline`, window_, context.signal);
  if (!timeline.lanes.length) {
    fill(main, h("h1", null, "Timeline"), h("p", { class: "empty" }, "This run has no trace.json, or nothing is in it yet."));
    return {};
  }
  const from = Math.max(timeline.start, Number(route.params.from ?? timeline.start));
  const to = Math.min(timeline.end, Number(route.params.to ?? timeline.end)) || 1;
  const told = h("output", { class: "told", "aria-live": "polite" });
  const zoom = (a, b) => {
    const low = Math.max(timeline.start, Math.min(a, b));
    const high = Math.min(timeline.end, Math.max(a, b));
    if (high - low < 1e-5) return;
    const whole = high - low >= (timeline.end - timeline.start) * 0.999;
    setParams(route, { from: whole ? "" : low.toFixed(6), to: whole ? "" : high.toFixed(6) });
  };
  const scale = (factor) => {
    const middle = (from + to) / 2;
    zoom(middle - ((to - from) / 2) * factor, middle + ((to - from) / 2) * factor);
  };
  const move = (share) => zoom(Math.max(timeline.start, from + (to - from) * share), Math.min(timeline.end, to + (to - from) * share));
  fill(main, h("h1", null, "Timeline"),
    h("p", { class: "dim" }, `${from ? seconds(from) : "0 s"} to ${seconds(to)} of ${seconds(timeline.end)}; ${number(timeline.total)} spans${timeline.left_out ? `, the ${number(timeline.left_out)} shortest of them not drawn: zoom in` : ""}. Drag over a part to see it larger.`),
    h("div", { class: "fields" }, button("‹ Earlier", () => move(-0.5)), button("Later ›", () => move(0.5)), button("+ Closer", () => scale(0.5)),
      button("− Farther", () => scale(2)), button("All of it", () => zoom(timeline.start, timeline.end))),
    drawing(timeline, from, to, zoom, told), told);
  return { zoom: scale, move };
}

function drawing(timeline, from, to, zoom, told) {
  const { tracks, tops, heights, height } = layout(timeline);
  const px = (t) => ((t - from) / (to - from)) * WIDE;
  const board = svg("svg", { viewBox: `0 0 ${WIDE} ${height}`, preserveAspectRatio: "none", class: "board", role: "img", "aria-label": "Spans of the run in lanes" });
  tracks.forEach((track, i) => {
    if (i % 2) board.append(svg("rect", { class: "stripe", x: 0, y: track.top - GAP / 2, width: WIDE, height: track.height + GAP }));
  });
  timeline.spans.forEach(([lane, start, length], i) => {
    const x = Math.max(0, px(start));
    const wide = Math.max(0.6, Math.min(WIDE, px(start + length)) - x);
    board.append(svg("rect", { class: `span k${tracks.findIndex((track) => track.lanes.includes(lane)) % 8}`,
      x: x.toFixed(2), y: tops.get(lane), width: wide.toFixed(2), height: heights.get(lane), "data-i": i }));
  });
  const brush = svg("rect", { class: "brush", y: 0, height, visibility: "hidden" });
  board.append(brush);
  pointing(board, brush, { timeline, from, to, zoom, told });
  return h("div", { class: "timeline" },
    h("div", { class: "lanes" }, tracks.map((track, i) => h("div", { class: "lane-name", title: track.name, css: { height: `${track.height + GAP}px` } },
      h("i", { class: "swatch", css: { "--swatch": `var(--c${i % 8})` } }), track.name, track.lanes.length > 1 ? h("span", { class: "dim" }, ` × ${track.lanes.length}`) : null))),
    h("div", null, h("div", { class: "board-holder", css: { height: `${height}px` } }, board), scaleMarks(from, to)));
}

// Lanes of one track lie below each other, the lower the more there are of them.
function layout(timeline) {
  const used = [...new Set(timeline.spans.map((span) => span[0]))].sort((a, b) => a - b);
  const byName = new Map();
  for (const lane of used) {
    const name = trackOf(timeline.lanes[lane]);
    if (!byName.has(name)) byName.set(name, []);
    byName.get(name).push(lane);
  }
  const tops = new Map();
  const heights = new Map();
  let height = GAP / 2;
  const tracks = [...byName].map(([name, lanes]) => {
    const each = Math.max(2, Math.min(18, Math.floor(160 / lanes.length)));
    const top = height;
    lanes.forEach((lane, i) => {
      tops.set(lane, top + i * each);
      heights.set(lane, each > 3 ? each - 1 : each);
    });
    const own = Math.max(18, each * lanes.length);
    height += own + GAP;
    return { name, lanes, top, height: own };
  });
  return { tracks, tops, heights, height };
}

// "train rollouts 12" and "train rollouts" are one track in two lanes.
function trackOf(name) {
  return name.replace(/ \d+$/, "");
}

function scaleMarks(from, to) {
  return h("div", { class: "scale", "aria-hidden": "true" }, timeTicks(from, to, 6).map(({ at, text }) =>
    h("span", { css: { "--at": `${(((at - from) / (to - from)) * 100).toFixed(3)}%` } }, text)));
}

function pointing(board, brush, { timeline, from, to, zoom, told }) {
  let start = null;
  const at = (event) => {
    const box = board.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  board.addEventListener("pointerdown", (event) => {
    start = at(event);
    board.setPointerCapture(event.pointerId);
  });
  board.addEventListener("pointermove", (event) => {
    const now = at(event);
    if (start !== null) {
      brush.setAttribute("x", Math.min(start, now) * WIDE);
      brush.setAttribute("width", Math.abs(now - start) * WIDE);
      brush.setAttribute("visibility", "visible");
      return;
    }
    const i = event.target.getAttribute("data-i");
    if (i === null) return;
    const [lane, begun, length, name, details] = timeline.spans[Number(i)];
    fill(told, plainText(`${timeline.lanes[lane]}: ${name}, ${seconds(length)} from ${seconds(begun)}${details ? ` ${JSON.stringify(details)}` : ""}`));
  });
  board.addEventListener("pointerup", (event) => {
    const now = at(event);
    const a = start;
    start = null;
    brush.setAttribute("visibility", "hidden");
    if (a !== null && Math.abs(now - a) > 0.005) zoom(from + (to - from) * a, from + (to - from) * now);
  });
  board.addEventListener("pointercancel", () => {
    start = null;
    brush.setAttribute("visibility", "hidden");
  });
}
