// Numbers, money and times as people read them.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** An integer with its thousands apart. */
export function count(value) {
  return counts.format(value);
}

/** A large number in few characters. */
export function short(value) {
  return value < 10_000 ? counts.format(value) : compact.format(value);
}

/** Nano-dollars as dollars: cents from a dollar on, below it the first digits that matter. */
export function dollars(nanousd) {
  const sign = nanousd < 0 ? "-" : "";
  const value = Math.abs(nanousd) / 1e9;
  if (value === 0) return "$0.00";
  if (value >= 1) {
    const options = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
    return `${sign}$${value.toLocaleString("en", options)}`;
  }
  const digits = Math.min(9, Math.max(2, 2 - Math.floor(Math.log10(value))));
  return `${sign}$${value.toFixed(digits)}`;
}

/** How long ago a moment was, or how long until it comes. */
export function age(moment, now = Date.now()) {
  if (!moment) return "–";
  const seconds = Math.round((now - Date.parse(moment)) / 1000);
  const span = Math.abs(seconds);
  const [size, unit] = span < 90 ? [1, "s"] : span < 5400 ? [60, "min"]
    : span < 129_600 ? [3600, "h"] : [86_400, "d"];
  const text = `${Math.round(span / size)}\u00a0${unit}`;
  return seconds < 0 ? `in\u00a0${text}` : `${text}\u00a0ago`;
}

/** A day of the API, `2026-11-29`, as `29 Nov`, or with its year. */
export function day(text, withYear = false) {
  return new Date(`${text}T00:00:00Z`).toLocaleDateString("en-GB", {
    day: "numeric", month: "short", timeZone: "UTC", ...(withYear ? { year: "numeric" } : {}),
  });
}

/** Some days from the first to the last: a whole month by its name. */
export function period(first, last) {
  if (first.endsWith("-01") && nextDay(last).endsWith("-01") && first.slice(0, 7) === last.slice(0, 7)) {
    return new Date(`${first}T00:00:00Z`).toLocaleDateString("en-GB", {
      month: "long", year: "numeric", timeZone: "UTC",
    });
  }
  return `${day(first)} – ${day(last, true)}`;
}

/** The day after one. */
export const nextDay = (text) =>
  new Date(Date.parse(text) + 86_400_000).toISOString().slice(0, 10);

/** Today in UTC, as the API writes it. */
export const today = (now = Date.now()) => new Date(now).toISOString().slice(0, 10);

/** The last `length` days, the oldest first, as the API writes them. */
export function lastDays(length, now = Date.now()) {
  return Array.from({ length }, (_, index) =>
    new Date(now - (length - 1 - index) * 86_400_000).toISOString().slice(0, 10));
}

/** A duration in seconds, or a dash where there is none. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${Math.round(value * 1000)}\u00a0ms` : `${value.toFixed(2)}\u00a0s`;
}

/** A moment as date and time in UTC. */
export function moment(text) {
  return text ? text.slice(0, 19).replace("T", " ") : "–";
}

/** The month that a day is in, `2026-11`. */
export const thisMonth = (now = Date.now()) => new Date(now).toISOString().slice(0, 7);

/** A part of one as a percentage: whole below 99%, and never 100% for less. */
export function share(value) {
  const percent = value * 100;
  if (value < 1 && percent > 99) return `${Math.min(99.99, percent).toFixed(2)}%`;
  return `${Math.round(percent)}%`;
}

/** A size in binary units. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value > 0 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${Number((value / 1024 ** power).toPrecision(3))}\u00a0${units[power]}`;
}
