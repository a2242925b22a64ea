// Numbers as people read them, and the round values of an axis.

export function number(value, digits = 3) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size >= 0.001) return String(Number(value.toPrecision(digits)));
  return value.toExponential(1);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(0)} days`;
}

export function interval(pair) {
  return pair ? `[${number(pair[0], 2)}, ${number(pair[1], 2)}]` : "";
}

// The least of 1, 2 and 5 times a power of ten that is not below a number.
export function roundStep(raw) {
  const base = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((k) => k * base).find((step) => step >= raw * 0.999) || 10 * base;
}

export function multiples(low, high, step) {
  const values = [];
  if (!(step > 0) || !Number.isFinite(low / step)) return values;
  const last = high + step * 1e-9;
  for (let n = Math.ceil(low / step - 1e-9); n * step <= last && values.length < 50; n++) {
    values.push(n * step || 0); // never -0
  }
  return values;
}

// The ticks of a value axis: {values, texts, power}. Values that are very small or large are divided by 10 ** power.
export function valueTicks(low, high, count) {
  const values = multiples(low, high, roundStep((high - low) / count));
  const size = Math.max(Math.abs(low), Math.abs(high));
  const power = size >= 0.01 && size < 10000 ? 0 : 3 * Math.floor(Math.log10(size) / 3);
  const texts = values.map((value) => number(Number((value / 10 ** power).toPrecision(6)), 4));
  return { values, texts, power };
}

const TIME_STEPS = [15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400]; // seconds

// The ticks of a time axis at equal distances, in one unit: [{at: seconds, text}].
export function timeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const listed = TIME_STEPS.find((step) => step >= raw * 0.999);
  const step = raw <= 10 ? roundStep(raw) : listed || roundStep(raw / 86400) * 86400;
  const [unit, name] = step < 60 ? [1, "s"] : step < 3600 ? [60, "min"] : step < 86400 ? [3600, "h"] : [86400, "days"];
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / unit) + 1e-9)));
  const text = (at) => `${(at / unit).toLocaleString("en", { maximumFractionDigits: digits })} ${name}`;
  return multiples(low, high, step).map((at) => ({ at, text: text(at) }));
}
