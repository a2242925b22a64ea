import { setParams } from "./address.js";
import { request } from "./api.js";
import { swatch } from "./chart.js";
import { button, fill, h, svg } from "./dom.js";
import { number, seconds, timeTicks } from "./numbers.js";
import { plainText } from "./text.js";

// The timeline of a run: its spans in lanes. Dragging, buttons and keys choose the part that is shown.

const BOARD_WIDTH = 1000;
const TRACK_GAP = 10;

export async function showTimeline(main, route, context) {
  const { from: fromText, to: toText } = route.params;
  const timeline = await request(`${context.run.number}/timeline`, { from: fromText, to: toText }, context.signal);
  if (!timeline.lanes.length) {
    fill(main, h("h1", null, "Timeline"), h("p", { class: "empty" }, "This run has no trace.json, or it is empty."));
    return {};
  }
  const from = Math.max(0, Number(fromText ?? 0));
  const to = Math.min(timeline.end, Number(toText ?? timeline.end)) || 1;
  const show = (a, b) => {
    const low = Math.max(0, Math.min(a, b));
    const high = Math.min(timeline.end, Math.max(a, b));
    if (high - low < 1e-5) return;
    const isWhole = high - low >= timeline.end * 0.999;
    setParams(route, { from: isWhole ? "" : low.toFixed(6), to: isWhole ? "" : high.toFixed(6) });
  };
  const zoom = (factor) => {
    const middle = (from + to) / 2;
    const half = ((to - from) / 2) * factor;
    show(middle - half, middle + half);
  };
  const move = (share) => {
    const by = (to - from) * share;
    show(Math.max(0, from + by), Math.min(timeline.end, to + by));
  };
  const line = h("output", { class: "token-line", "aria-live": "polite" });
  fill(main, h("h1", null, "Timeline"), h("p", { class: "dim" }, describeWindow(timeline, from, to)),
    h("div", { class: "fields" },
      button("‹ Earlier", () => move(-0.5)), button("Later ›", () => move(0.5)),
      button("+ Zoom in", () => zoom(0.5)), button("− Zoom out", () => zoom(2)),
      button("Whole run", () => show(0, timeline.end))),
    board(timeline, from, to, show, line), line);
  return { zoom, move };
}

function describeWindow(timeline, from, to) {
  const hidden = timeline.left_out ? `, the ${number(timeline.left_out)} shortest of them not drawn: zoom in` : "";
  return `${from ? seconds(from) : "0 s"} to ${seconds(to)} of ${seconds(timeline.end)}; ` +
    `${number(timeline.total)} spans${hidden}. Drag over a part to zoom in.`;
}

function board(timeline, from, to, show, line) {
  const { tracks, lanes, height } = layOut(timeline);
  const x = (time) => ((time - from) / (to - from)) * BOARD_WIDTH;
  const drawing = svg("svg", {
    viewBox: `0 0 ${BOARD_WIDTH} ${height}`, preserveAspectRatio: "none", class: "board", role: "img",
    "aria-label": "Spans of the run in lanes",
  });
  tracks.forEach((track, i) => {
    const size = { x: 0, y: track.top - TRACK_GAP / 2, width: BOARD_WIDTH, height: track.height + TRACK_GAP };
    if (i % 2) drawing.append(svg("rect", { class: "stripe", ...size }));
  });
  timeline.spans.forEach(([lane, start, length], i) => {
    const left = Math.max(0, x(start));
    const width = Math.max(0.6, Math.min(BOARD_WIDTH, x(start + length)) - left);
    const { top, height: laneHeight, track } = lanes.get(lane);
    drawing.append(svg("rect", {
      class: `span k${track % 8}`, x: left.toFixed(2), y: top, width: width.toFixed(2), height: laneHeight, "data-i": i,
    }));
  });
  const brush = svg("rect", { class: "brush", y: 0, height, visibility: "hidden" });
  drawing.append(brush);
  onDrag(drawing, brush, (a, b) => show(from + (to - from) * a, from + (to - from) * b));
  drawing.addEventListener("pointermove", (event) => {
    const i = event.target.getAttribute("data-i");
    if (i !== null && brush.getAttribute("visibility") === "hidden") fill(line, describeSpan(timeline, Number(i)));
  });
  return h("div", { class: "timeline" },
    h("div", { class: "lanes" }, tracks.map(trackName)),
    h("div", null, h("div", { class: "board-holder", css: { height: `${height}px` } }, drawing), timeAxis(from, to)));
}

// Tracks from top to bottom. A track has one lane or several below each other, which are lower the more there are.
function layOut(timeline) {
  const used = [...new Set(timeline.spans.map((span) => span[0]))].sort((a, b) => a - b);
  const lanesByTrack = new Map();
  for (const lane of used) {
    const name = timeline.lanes[lane].replace(/ \d+$/, ""); // "trainer 2" is the second lane of "trainer"
    if (!lanesByTrack.has(name)) lanesByTrack.set(name, []);
    lanesByTrack.get(name).push(lane);
  }
  const lanes = new Map();
  let height = TRACK_GAP / 2;
  const tracks = [...lanesByTrack].map(([name, numbers], track) => {
    const laneHeight = Math.max(2, Math.min(18, Math.floor(160 / numbers.length)));
    const top = height;
    numbers.forEach((lane, i) => {
      lanes.set(lane, { track, top: top + i * laneHeight, height: laneHeight > 3 ? laneHeight - 1 : laneHeight });
    });
    const trackHeight = Math.max(18, laneHeight * numbers.length);
    height += trackHeight + TRACK_GAP;
    return { name, count: numbers.length, top, height: trackHeight };
  });
  return { tracks, lanes, height };
}

function trackName(track, i) {
  return h("div", { class: "lane-name", title: track.name, css: { height: `${track.height + TRACK_GAP}px` } },
    swatch(i), track.name, track.count > 1 ? h("span", { class: "dim" }, ` × ${track.count}`) : null);
}

function timeAxis(from, to) {
  return h("div", { class: "scale", "aria-hidden": "true" }, timeTicks(from, to, 6).map(({ at, text }) =>
    h("span", { css: { "--at": `${(((at - from) / (to - from)) * 100).toFixed(3)}%` } }, text)));
}

function describeSpan(timeline, i) {
  const [lane, start, length, name, details] = timeline.spans[i];
  const more = details ? ` ${JSON.stringify(details)}` : "";
  return plainText(`${timeline.lanes[lane]}: ${name}, ${seconds(length)} from ${seconds(start)}${more}`);
}

// Draws the part that is dragged over, and then calls onDone with its ends as shares of the width.
function onDrag(drawing, brush, onDone) {
  let start = null;
  const shareAt = (event) => {
    const box = drawing.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  const end = () => {
    start = null;
    brush.setAttribute("visibility", "hidden");
  };
  drawing.addEventListener("pointerdown", (event) => {
    start = shareAt(event);
    drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const now = shareAt(event);
    brush.setAttribute("x", Math.min(start, now) * BOARD_WIDTH);
    brush.setAttribute("width", Math.abs(now - start) * BOARD_WIDTH);
    brush.setAttribute("visibility", "visible");
  });
  drawing.addEventListener("pointerup", (event) => {
    const [from, to] = [start, shareAt(event)];
    end();
    if (from !== null && Math.abs(to - from) > 0.005) onDone(from, to);
  });
  drawing.addEventListener("pointercancel", end);
}
