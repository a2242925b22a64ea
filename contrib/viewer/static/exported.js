// The answers to the page's requests from the data of an exported file; they are the same as the server's.

const NO_KIND = "no_kind"; // of tasks without a kind
const embedded = document.getElementById("data").textContent;
export const exported = embedded ? JSON.parse(embedded) : null;

export function exportedAnswer(path, params) {
  if (path === "runs") return { place: exported.place, runs: exported.runs };
  const [run, view] = path.split("/");
  const data = exported.views[run];
  if (view === "state") {
    return { stamp: 0, indexed: true, done: 1, total: 1, step: null, changed: null, goes_on: false, index_error: "" };
  }
  if (view === "live") return { state: null, ended: "This file is of a run that has ended.", actions: [] };
  if (view === "timeline") return timelineIn(data.timeline, params);
  if (view === "curves") return curvesNamed(data.curves[params.phase || "train"], params.names);
  if (view === "episode") return episodeDetail(data, params);
  if (view === "episodes") return pageOf(sortedEpisodes(matchingRows(data, params), params), params);
  if (view === "groups") return pageOf(sortedGroups(matchingRows(data, params), params), params);
  return data[view]; // overview, faults, console
}

function pageOf(rows, params) {
  const offset = Number(params.offset || 0);
  const page = rows.slice(offset, offset + Number(params.limit || 50));
  return { total: rows.length, rows: page, search: null };
}

function timelineIn(timeline, params) {
  const from = params.from ? Number(params.from) : -Infinity;
  const to = params.to ? Number(params.to) : Infinity;
  const spans = timeline.spans.filter((span) => span[1] <= to && span[1] + span[2] >= from);
  return { ...timeline, spans, total: spans.length };
}

function curvesNamed(curves, names) {
  if (!curves) return { step: [], time: [], per_point: 1, values: {} };
  const known = (names || "").split(",").filter((name) => Object.hasOwn(curves.values, name));
  return { ...curves, values: Object.fromEntries(known.map((name) => [name, curves.values[name]])) };
}

function episodeDetail(data, params) {
  if (!Object.hasOwn(data.details, params.key)) throw new Error("This episode was left out of the exported file.");
  return { ...data.details[params.key], ...neighbours(sortedEpisodes(matchingRows(data, params), params), params.key) };
}

// The place of an episode in a list.
function neighbours(rows, key) {
  const at = rows.findIndex((row) => row.key === key);
  if (at < 0) return { previous: null, next: null, place: null, listed: rows.length };
  const keyAt = (i) => (rows[i] ? rows[i].key : null);
  return { previous: keyAt(at - 1), next: keyAt(at + 1), place: at + 1, listed: rows.length };
}

function matchingRows(data, params) {
  return data.rows.filter((row) => matches(row, params, data.details));
}

function matches(row, params, details) {
  const is = (name, value) => !params[name] || String(value) === params[name];
  if (!["phase", "outcome", "env", "step", "fault", "error"].every((name) => is(name, row[name]))) return false;
  if (!is("kind", row.task_kind || NO_KIND)) return false;
  if (!is("group", row.group_id) || !is("task", row.task)) return false;
  if (params.tool && !row.tools.includes(params.tool)) return false;
  if (params.id && !row.id.includes(params.id)) return false;
  if (params.reward_from && !(row.reward !== null && row.reward >= Number(params.reward_from))) return false;
  if (params.reward_to && !(row.reward !== null && row.reward <= Number(params.reward_to))) return false;
  const version = Number(params.version);
  if (params.version && !(row.version_low <= version && row.version_high >= version)) return false;
  const has = {
    fault: row.fault !== "", tool_error: row.tool_errors > 0, tools: row.tools.length > 0,
    no_tools: row.tools.length === 0, success: Boolean(row.success), failure: row.reward !== null && !row.success,
  };
  if (params.has && !has[params.has]) return false;
  const text = (params.q || "").toLowerCase();
  return !text || strings(details[row.key].episode).some((shown) => shown.toLowerCase().includes(text));
}

function strings(value) {
  if (typeof value === "string") return [value];
  return value && typeof value === "object" ? Object.values(value).flatMap(strings) : [];
}

const orLast = (value) => (value === null || value === undefined ? Infinity : value);
const endOf = (row) => (row.started === null ? -Infinity : row.started + row.seconds);
const descending = (a, b) => (a === b ? 0 : b - a); // two infinite values are equal too
const EPISODE_ORDERS = {
  newest: (a, b) => descending(endOf(a), endOf(b)),
  reward: (a, b) => orLast(a.reward) - orLast(b.reward),
  reward_down: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  turns: (a, b) => b.turns - a.turns,
  tokens: (a, b) => b.sampled - a.sampled,
  seconds: (a, b) => b.seconds - a.seconds,
  step: (a, b) => (b.step ?? -Infinity) - (a.step ?? -Infinity),
};
const newestOf = (group) => Math.max(...group.episodes.map(endOf));
const GROUP_ORDERS = {
  spread: (a, b) => (b.spread ?? -1) - (a.spread ?? -1),
  reward: (a, b) => orLast(a.mean) - orLast(b.mean),
  reward_down: (a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity),
  newest: (a, b) => descending(newestOf(a), newestOf(b)),
  size: (a, b) => b.size - a.size,
};

function sortedEpisodes(rows, params) {
  return sorted(rows, EPISODE_ORDERS, params.order);
}

function sortedGroups(rows, params) {
  const members = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.phase, row.group_id]);
    if (!members.has(key)) members.set(key, []);
    members.get(key).push(row);
  }
  return sorted([...members.values()].map(groupOf), GROUP_ORDERS, params.order || "spread");
}

// The order "written" is that of the file, which the rows have already.
function sorted(rows, orders, name) {
  const copy = [...rows];
  if (name === "newest") copy.reverse(); // of those that ended at the same time, the one written last comes first
  return orders[name] ? copy.sort((a, b) => orders[name](a, b) || 0) : copy;
}

function groupOf(rows) {
  const rewards = rows.map((row) => row.reward).filter((reward) => reward !== null);
  const count = rewards.length;
  const mean = count ? rewards.reduce((a, b) => a + b, 0) / count : null;
  const low = count ? Math.min(...rewards) : null, high = count ? Math.max(...rewards) : null;
  const isSame = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)); // but for rounding, as on the server
  const variance = isSame ? 0 : rewards.reduce((a, b) => a + (b - mean) ** 2, 0) / count;
  const { phase, group_id, question, step } = rows[0];
  return {
    phase, group_id, question, step, mean, size: rows.length, low, high,
    spread: count ? Math.sqrt(variance) : null, episodes: rows,
  };
}
