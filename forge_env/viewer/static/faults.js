import { ask } from "./api.js";
import { fill, h, number } from "./dom.js";
import { address } from "./lists.js";
import { badLines } from "./runs.js";

// Faults of ours, by class and message.

export async function showFaults(main, route, context) {
  const { faults, bad } = await ask(`${context.run.number}/faults`, {}, context.signal);
  fill(main, h("h1", null, "Faults"),
    h("p", { class: "dim" }, "Episodes that ended by a fault of the environment or the machinery, or by a time-out. They have no reward. In an evaluation a time-out counts as not solved, and a fault not at all."),
    badLines(bad),
    faults.length ? h("div", { class: "scroll" }, h("table", { class: "list" },
      h("thead", null, h("tr", null, ["Episodes", "Class", "Message", "Phase", "Newest"].map((text, i) => h("th", { scope: "col", class: i ? "" : "num" }, text)))),
      h("tbody", null, faults.map((each) => h("tr", null,
        h("td", { class: "num" }, number(each.count)), h("td", null, h("span", { class: "mark fault" }, each.fault)),
        h("td", { class: "said" }, h("a", { class: "row", href: address(route.run, "episodes", { phase: each.phase, fault: each.fault, error: each.error }) }, each.error || "(no message)")),
        h("td", null, each.phase), h("td", null, h("a", { href: address(route.run, "episode", { key: each.episode, phase: each.phase, fault: each.fault, error: each.error }) }, "look")))))))
      : h("p", { class: "empty" }, context.empty("No faults.")));
}
