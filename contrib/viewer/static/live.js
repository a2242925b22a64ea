import { request, send } from "./api.js";
import { button, fill, h, table } from "./dom.js";
import { seconds } from "./numbers.js";

// A training run that goes on: its queue, its processes, the episodes that are played, and actions on it.

const PLAIN_ACTIONS = [
  ["pause", "Pause"], ["resume", "Resume"], ["evaluate", "Evaluate now"], ["stop", "Stop after this step"],
  ["release", "Let others act"],
];
const answered = { run: null, text: "" }; // what the last action led to

export async function showLive(main, route, context) {
  const { number } = context.run;
  const { state, ended, actions } = await request(`${number}/live`, {}, context.signal);
  if (answered.run !== number) Object.assign(answered, { run: number, text: "" });
  const note = h("p", { role: "status" }, answered.text);
  const act = async (action, value) => {
    try {
      answered.text = (await send(`${number}/act`, { action, value: value || "" })).text;
    } catch (error) {
      answered.text = error.message;
    }
    fill(note, answered.text);
  };
  fill(main, h("h1", null, "Live"),
    state ? [actionButtons(act), limitForm(act, state.limits), note, h("p", null, liveSentence(state)),
      liveTables(state, act)] : h("p", { class: "empty" }, ended),
    actions.length ? h("section", null, h("h2", null, "Actions"),
      table([["Time", ""], ["Step", "num"], ["Who", ""], ["Action", ""], ["What follows", ""]],
        actions.map((each) => [each.time, each.step, each.who, `${each.action} ${each.value}`, each.text]))) : null);
}

function actionButtons(act) {
  return h("div", { class: "fields" }, PLAIN_ACTIONS.map(([action, text]) => button(text, () => act(action))));
}

function limitForm(act, limits) {
  const name = h("select", { "aria-label": "Limit" }, limits.map((limit) => h("option", { value: limit }, limit)));
  const value = h("input", { type: "text", "aria-label": "Value of the limit", autocomplete: "off" });
  return h("div", { class: "fields" }, name, value,
    button("Set", () => act("set", `${name.value}=${value.value}`)));
}

function liveSentence(state) {
  const { queue } = state;
  if (!queue) return "The run takes no steps now.";
  const marks = ["paused", "evaluates", "stopping"].filter((name) => state[name]);
  const waited = queue.waited_for.length ? `; the next step waits for group ${queue.waited_for.join(", ")}` : "";
  return `${[`${queue.steps_done} of ${state.steps} steps`, ...marks].join(", ")}. ` +
    `${queue.ready} of ${queue.open} groups are ready, and ${queue.groups_per_step} make a step${waited}. ` +
    `The engines have the weights of step ${queue.engine_steps}; a group may be ${queue.most_behind} steps behind. ` +
    (state.holder ? `${state.holder} may act.` : "Nobody acts on it.") +
    state.silent.map((name) => ` ${name} does not answer.`).join("");
}

function liveTables(state, act) {
  return [
    h("section", null, h("h2", null, "Under way"), table([["Work", ""], ["Since", "num"]],
      state.waits.map((each) => [each.for, seconds(each.seconds)]))),
    h("section", null, h("h2", null, "Processes"),
      table([["Service", ""], ["Up", "num"], ["Calls", "num"], ["Replaced", "num"]], state.services.map((each) =>
        [each.name, `${each.up} of ${each.wanted}`, each.calls, `${each.replaced} ${each.last_reason}`]))),
    h("section", null, h("h2", null, "Groups"),
      table([["Group", ""], ["Since", "num"], ["Versions behind", "num"], ["", ""]], state.groups.map((each) =>
        [each.group, seconds(each.seconds), each.behind, button("Requeue", () => act("requeue", each.group))]))),
    h("section", null, h("h2", null, "Episodes"),
      table([["Episode", ""], ["Turns", "num"], ["Waits for", ""], ["Since", "num"], ["Last message", ""]],
        state.episodes.map((each) => [each.episode, each.turns, `${each.waits_for} (${each.process})`,
          seconds(each.seconds), Object.values(each.last).join(": ")]))),
  ];
}
