import { ask } from "./api.js";
import { fill, h, number } from "./dom.js";
import { withParams } from "./lists.js";
import { block } from "./text.js";

// What a run says while it works, and the logs of its processes.

const KINDS = { warning: "told-of", error: "told-of" };

export async function showConsole(main, route, context) {
  const { lines, logs, log } = await ask(`${context.run.number}/console`, { log: route.params.log }, context.signal);
  fill(main, h("h1", null, "Console"),
    lines.length ? h("ol", { class: "console" }, lines.map((line) => h("li", { class: KINDS[line.kind] || "" },
      h("span", { class: "dim" }, line.time === null ? "" : `${line.time.toFixed(1)} s`), h("pre", null, line.text.replace(/\[\/?bold\]/g, "")))))
      : h("p", { class: "empty" }, "This run has no console.jsonl, or nothing is in it yet."),
    logs.length ? h("section", null, h("h2", null, "Logs of its processes"),
      h("div", { class: "tabs" }, logs.map((each) => h("a", { href: withParams(route, { log: each.name }), "aria-current": each.name === route.params.log ? "true" : null },
        `${each.name}, ${number(each.bytes)} bytes`))),
      route.params.log ? block(log || "(nothing)", "code", { chars: 40000, lines: 2000 }) : null) : null);
}
