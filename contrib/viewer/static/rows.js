import { button, h } from "./dom.js";
import { number } from "./numbers.js";
import { plainText } from "./text.js";

// The rows of an episode as a tree: which row each comes from, and why it began.

export function rowTree(detail) {
  const { rows } = detail;
  if (!rows || rows.length < 2) return null;
  const shown = new Set();
  const item = (n) => {
    shown.add(n);
    const children = rows.map((row, i) => i).filter((i) => rows[i].parent === n && !shown.has(i));
    return h("li", { class: rows[n].auxiliary ? "auxiliary" : null }, rowLine(rows[n], n),
      children.length ? h("ul", null, children.map((i) => (shown.has(i) ? null : item(i)))) : null);
  };
  const roots = rows.map((row, n) => n).filter((n) => rows[n].parent === null);
  const tree = roots.map(item);
  rows.forEach((row, n) => (shown.has(n) ? null : tree.push(item(n)))); // a broken record may hold a circle
  const auxiliary = rows.filter((row) => row.auxiliary).length;
  return h("details", { class: "rows", open: true },
    h("summary", null, `${number(rows.length)} rows`,
      auxiliary ? h("span", { class: "dim" }, `, ${number(auxiliary)} of them auxiliary: not trained on`) : null),
    h("nav", { "aria-label": "Rows of the episode" }, h("ul", null, tree)));
}

function rowLine(row, n) {
  const turns = row.first === row.last ? `turn ${row.first + 1}` : `turns ${row.first + 1} to ${row.last + 1}`;
  const go = () => {
    const place = document.getElementById(`row-${n}`);
    if (!place) return;
    place.scrollIntoView({ block: "start" });
    place.focus({ preventScroll: true });
  };
  return h("div", { class: "row-line" },
    button(`Row ${n + 1}`, go, { class: "quiet", title: "Go to this row" }),
    h("span", { class: "dim" }, turns), rowMarks(row));
}

// Why a row began, and what it comes from.
export function rowMarks(row) {
  const from = row.branch === null ? "" : `from turn ${row.branch + 1}`;
  const facts = [from, row.known_by ? `known by ${row.known_by}` : "", row.agent ? `agent ${row.agent}` : ""];
  return [
    row.kind ? h("span", { class: row.auxiliary ? "mark none" : "mark some" }, row.kind.replaceAll("_", " ")) : null,
    row.why ? h("span", null, plainText(row.why)) : null,
    h("span", { class: "dim" }, facts.filter(Boolean).join(" · ")),
  ];
}
