import { address } from "./address.js";
import { request } from "./api.js";
import { fill, h, table } from "./dom.js";
import { number } from "./numbers.js";
import { badLines } from "./overview.js";

// Faults and time-outs, by class and message.

const FAULT_COLUMNS = [
  ["Episodes", "num"], ["Class", ""], ["Message", "message-text"], ["Phase", ""], ["Newest", ""],
];

export async function showFaults(main, route, context) {
  const { faults, bad } = await request(`${context.run.number}/faults`, {}, context.signal);
  const rows = faults.map(({ count, fault, error, phase, episode }) => [
    number(count), h("span", { class: "mark fault" }, fault),
    h("a", { class: "row", href: address(route.run, "episodes", { phase, fault, error }) }, error || "(no message)"),
    phase, h("a", { href: address(route.run, "episode", { key: episode, phase, fault, error }) }, "open"),
  ]);
  fill(main, h("h1", null, "Faults"),
    h("p", { class: "dim" }, "Episodes that a fault of the environment or of the infrastructure ended, or a time-out. " +
      "They have no reward. An evaluation counts a time-out as not solved, and leaves a fault out."),
    badLines(bad),
    rows.length ? table(FAULT_COLUMNS, rows) : h("p", { class: "empty" }, context.empty("No faults.")));
}
