// Where the page gets what it shows: from the server, or from what is in the document where that was exported.

const embedded = document.getElementById("data").textContent;
export const exported = embedded ? JSON.parse(embedded) : null;

export async function ask(path, params, signal) {
  if (exported) return local(path, params || {});
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== "" && value != null));
  let response;
  try {
    response = await fetch(`/api/${path}?${query}`, { signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: forge-env view has ended.");
  }
  if (response.status === 403) throw new Error(await response.text());
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `The server answered ${response.status}.`);
  return answer;
}

function local(path, params) {
  if (path === "runs") return { place: exported.place, runs: exported.runs };
  const [run, view] = path.split("/");
  const held = exported.views[run];
  if (view === "state") return { stamp: 0, indexed: true, done: 1, total: 1, step: null, changed: null, trouble: "" };
  if (view === "overview") return held.overview;
  if (view === "faults") return held.faults;
  if (view === "console") return held.console;
  if (view === "timeline") return localTimeline(held.timeline, params);
  if (view === "curves") return localCurves(held.curves[params.phase || "train"], params.names);
  if (view === "episode") {
    if (!Object.hasOwn(held.records, params.key)) throw new Error("This episode was left out of the exported file.");
    return { ...held.records[params.key], ...neighbours(ordered(listed(held, params), params), params.key) };
  }
  const rows = listed(held, params);
  return view === "groups" ? localGroups(rows, params) : localEpisodes(rows, params);
}

const listed = (held, params) => held.rows.filter((row) => matches(row, params, held.records));

// As the server's: where an episode stands in a list.
function neighbours(rows, key) {
  const at = rows.findIndex((row) => row.key === key);
  const keyAt = (i) => (rows[i] ? rows[i].key : null);
  if (at < 0) return { previous: null, next: null, place: null, listed: rows.length };
  return { previous: keyAt(at - 1), next: keyAt(at + 1), place: at + 1, listed: rows.length };
}

function localTimeline(timeline, params) {
  const from = params.from ? Number(params.from) : -Infinity;
  const to = params.to ? Number(params.to) : Infinity;
  const spans = timeline.spans.filter((span) => span[1] <= to && span[1] + span[2] >= from);
  return { ...timeline, spans, total: spans.length };
}

function localCurves(curves, names) {
  if (!curves) return { step: [], time: [], per_point: 1, values: {} };
  const wanted = (names || "").split(",").filter((name) => Object.hasOwn(curves.values, name));
  return { ...curves, values: Object.fromEntries(wanted.map((name) => [name, curves.values[name]])) };
}

function matches(row, params, records) {
  const is = (name, value) => !params[name] || String(value) === params[name];
  if (!["phase", "outcome", "env", "step", "fault", "error"].every((name) => is(name, row[name]))) return false;
  if (!is("group", row.group_id) || !is("task", row.task)) return false;
  if (params.tool && !row.tools.includes(params.tool)) return false;
  if (params.id && !row.id.includes(params.id)) return false;
  if (params.reward_from && !(row.reward !== null && row.reward >= Number(params.reward_from))) return false;
  if (params.reward_to && !(row.reward !== null && row.reward <= Number(params.reward_to))) return false;
  if (params.version && !(row.version_low <= Number(params.version) && row.version_high >= Number(params.version))) {
    return false;
  }
  const has = {
    fault: row.fault !== "", tool_error: row.tool_errors > 0, tools: row.tools.length > 0,
    no_tools: row.tools.length === 0, success: Boolean(row.success), failure: row.reward !== null && !row.success,
  };
  if (params.has && !has[params.has]) return false;
  return !params.q || strings(records[row.key].episode).some((text) => text.toLowerCase().includes(params.q.toLowerCase()));
}

function strings(value) {
  if (typeof value === "string") return [value];
  return value && typeof value === "object" ? Object.values(value).flatMap(strings) : [];
}

const last = (value) => (value === null || value === undefined ? Infinity : value);
const ended = (row) => (row.started === null ? -Infinity : row.started + row.seconds);
const down = (a, b) => (a === b ? 0 : b - a); // two that never happened are alike too
const EPISODE_ORDERS = {
  newest: (a, b) => down(ended(a), ended(b)), written: null, reward: (a, b) => last(a.reward) - last(b.reward),
  reward_down: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity), turns: (a, b) => b.turns - a.turns,
  tokens: (a, b) => b.sampled - a.sampled, seconds: (a, b) => b.seconds - a.seconds,
  step: (a, b) => (b.step ?? -Infinity) - (a.step ?? -Infinity),
};

function localEpisodes(rows, params) {
  return cut(ordered(rows, params), params);
}

function ordered(rows, params) {
  const order = EPISODE_ORDERS[params.order];
  if (params.order === "newest") rows = [...rows].reverse(); // those that ended at the same time: the last one first
  return order ? [...rows].sort((a, b) => order(a, b) || 0) : rows;
}

const newest = (group) => Math.max(...group.episodes.map(ended));
const GROUP_ORDERS = {
  spread: (a, b) => (b.spread ?? -1) - (a.spread ?? -1), reward: (a, b) => last(a.mean) - last(b.mean),
  reward_down: (a, b) => (b.mean ?? -Infinity) - (a.mean ?? -Infinity), written: null,
  newest: (a, b) => down(newest(a), newest(b)), size: (a, b) => b.size - a.size,
};

function localGroups(rows, params) {
  const found = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.phase, row.group_id]);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(row);
  }
  let groups = [...found.values()].map(groupOf);
  const order = GROUP_ORDERS[params.order || "spread"];
  if (params.order === "newest") groups = groups.reverse();
  if (order) groups.sort((a, b) => order(a, b) || 0);
  return cut(groups, params);
}

function groupOf(rows) {
  const rewards = rows.map((row) => row.reward).filter((reward) => reward !== null);
  const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
  const variance = rewards.length ? rewards.reduce((a, b) => a + (b - mean) ** 2, 0) / rewards.length : null;
  const { phase, group_id, task, env, question, step } = rows[0];
  return {
    phase, group_id, task, env, question, step, mean, size: rows.length, faults: rows.length - rewards.length,
    low: rewards.length ? Math.min(...rewards) : null, high: rewards.length ? Math.max(...rewards) : null,
    spread: variance === null ? null : Math.sqrt(variance), episodes: rows,
  };
}

function cut(rows, params) {
  const offset = Number(params.offset || 0);
  const page = rows.slice(offset, offset + Number(params.limit || 50));
  return { total: rows.length, rows: page, search: null, stamp: 0 };
}
