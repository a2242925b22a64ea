// The charts that the overview of a run shows at first, in sections, with what a metric means.

const SHARED_STEP = "With staleness, episodes are sampled during the other parts; the first part is the remaining wait.";
const ONLY_IF_CHANGING = /:(learning_rate|kl_penalty|groups_open|length_bias|staleness_mean)$/;

// Section; the metrics of one chart, or a pattern: a chart for each metric, or one for all where there is a title; title;
// note.
const CHARTS = [
  ["Curves", ["train:reward"]],
  ["Curves", ["train:training_reward"], "", "The reward that is trained on."],
  ["Curves", /^(train|evaluation):reward\/.+\/mean$/, "", "Mean and standard deviation of a part of the reward."],
  ["Curves", ["train:success"], "", "Bars are 95% intervals."],
  ["Curves", ["train:loss"]],
  ["Curves", ["train:kl"], "", "KL(generator ‖ model), estimator k3, nats per token."],
  ["Curves", ["train:kl_penalty"], "", "KL penalty subtracted from the reward."],
  ["Curves", ["train:entropy"], "", "Of the policy, nats per token."],
  ["Curves", ["train:mean_abs_logprob_difference"], "", "Mismatch of trainer and generator: about 1e-6 where both " +
    "compute in float32, and 1e-2 in bfloat16; more with stale weights."],
  ["Curves", ["train:grad_norm"], "", "Gradient norm."],
  ["Curves", ["train:learning_rate"]],
  ["Curves", ["train:groups_with_signal"], "", "Groups of a step whose rewards are not all equal."],
  ["Curves", ["train:clipped_low", "train:clipped_high"], "Share of tokens that are clipped"],
  ["Success by kind of task", /^(train|evaluation):success\/.+/],
  ["Warm-up", ["warmup:loss"], "", "Supervised loss."],
  ["Warm-up", ["warmup:success"], "", "On probe tasks."],
  ["Speed", ["train:seconds/rollout", "train:seconds/train", "train:seconds/sync_stall"],
    "Where the seconds of a step go", SHARED_STEP],
  ["Speed", ["publish", "commit", "fetch", "swap"].map((part) => `train:seconds/${part}`), "Seconds of a weight update"],
  ["Speed", ["train:tokens/s"], "", "Sampled tokens per second."],
  ["Speed", ["train:staleness_mean"], "", "Mean number of optimizer steps from the weights that sampled to those trained."],
  ["Speed", ["train:groups_open"], "", "Groups in flight."],
  ["Speed", ["train:length_bias"], "", "Of the trained episodes."],
  ["Machine", /^system:gpu\/\d+\/utilization_percent$/, "GPU utilisation, %"],
  ["Machine", /^system:gpu\/\d+\/memory_used_bytes$/, "GPU memory, bytes"],
  ["Machine", /^system:gpu\/\d+\/power_watts$/, "GPU power, W"],
  ["Machine", /^system:gpu\/\d+\/temperature_celsius$/, "GPU temperature, °C"],
  ["Machine", /^system:cpu_percent\/.+/, "CPU of each service, %", "100% is one core."],
  ["Machine", ["system:cpu_percent"], "CPU of the machine, %", "100% is all cores."],
  ["Machine", /^system:memory_bytes\/.+/, "Memory of each service, bytes", "Shared memory counts in each of them."],
  ["Machine", ["system:run/memory_bytes", "system:memory_used_bytes"], "Memory of the run and of the machine, bytes"],
  ["Machine", ["system:disk_free_bytes"], "Free disk space, bytes"],
];

// The charts with metrics that a run has: {section, keys, title, note}; `keys` are "PHASE:METRIC".
export function defaultCharts(keys) {
  const has = (key) => keys.includes(key);
  return CHARTS.flatMap(([section, wanted, title = "", note = ""]) => {
    const listed = Array.isArray(wanted) ? wanted.filter(has) : keys.filter((key) => wanted.test(key));
    // A held-out metric is drawn into the chart of the same metric in training.
    const own = listed.filter((key) => !key.startsWith("evaluation:") || !has(key.replace("evaluation", "train")));
    const withSpread = (key) => [...new Set([key, key.replace(/\/mean$/, "/std")])].filter(has);
    return (title ? [own] : own.map(withSpread)).filter((of) => of.length)
      .map((of) => ({ section, keys: of, title, note }));
  });
}

// Whether there is something to see: some metrics are 0 where they are not used.
export function hasNews({ keys }, valuesOf) {
  const values = keys.flatMap(valuesOf).filter((value) => value !== null);
  const isOther = keys[0] !== "train:training_reward" || String(values) !== String(valuesOf("train:reward"));
  const isStill = ONLY_IF_CHANGING.test(keys[0]) && new Set(values).size < 2;
  return isOther && !isStill && (/:(reward|success)/.test(keys[0]) || values.some((value) => value !== 0));
}
