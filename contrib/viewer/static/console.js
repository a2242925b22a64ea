import { withParams } from "./address.js";
import { request } from "./api.js";
import { fill, h } from "./dom.js";
import { number } from "./numbers.js";
import { block } from "./text.js";

// The console of a run, and the logs of its processes.

const LINE_CLASSES = { warning: "problem", error: "problem" };

export async function showConsole(main, route, context) {
  const chosen = route.params.log;
  const { lines, logs, log } = await request(`${context.run.number}/console`, { log: chosen }, context.signal);
  fill(main, h("h1", null, "Console"),
    lines.length ? h("ol", { class: "console" }, lines.map(consoleLine))
      : h("p", { class: "empty" }, "This run has no console.jsonl, or it is empty."),
    logs.length ? h("section", null, h("h2", null, "Logs of its processes"),
      h("div", { class: "tabs" }, logs.map(({ name, bytes }) => h("a", {
        href: withParams(route, { log: name }), "aria-current": name === chosen ? "true" : null,
      }, `${name}, ${number(bytes)} bytes`))),
      chosen ? block(log || "(empty)", "code", { chars: 40000, lines: 2000 }) : null) : null);
}

function consoleLine({ time, kind, text }) {
  return h("li", { class: LINE_CLASSES[kind] || "" },
    h("span", { class: "dim" }, time === null ? "" : `${time.toFixed(1)} s`),
    h("pre", null, text.replace(/\[\/?bold\]/g, "")));
}
