// Addresses within the page: #/RUN/VIEW?PARAMETERS.

// The parameters that say which episodes are listed, and in which order.
const LIST_PARAMS = [
  "phase", "outcome", "env", "kind", "group", "task", "step", "version", "reward_from", "reward_to", "fault", "error", "tool",
  "has", "id", "q", "order",
];

// Where an episode, or a pair of them, is listed.
export const LISTS = { episode: "episodes", pair: "compare" };

export function address(run, view, params) {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== "" && value != null));
  const text = query.toString();
  return `#/${encodeURIComponent(run)}${view ? `/${view}` : ""}${text ? `?${text}` : ""}`;
}

export function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [run, view] = path.split("/");
  let name = "";
  try {
    name = decodeURIComponent(run || "");
  } catch {
    name = run; // an address that this page did not make
  }
  return { run: name, view: view || "", params: Object.fromEntries(new URLSearchParams(query || "")) };
}

export function listParams(params) {
  return Object.fromEntries(LIST_PARAMS.filter((name) => params[name]).map((name) => [name, params[name]]));
}

// The same place with some parameters changed; empty ones are left out.
export function withParams(route, changes) {
  return address(route.run, route.view, { ...route.params, ...changes });
}

export function setParams(route, changes) {
  location.hash = withParams(route, changes);
}
