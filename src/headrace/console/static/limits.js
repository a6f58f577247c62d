// Limits as people read and write them; one form and one text for tenants, projects and keys.

import { count, dollars } from "./format.js";

const period = (value) => (typeof value === "number" ? `${value} s` : value);

/** Limits in few words. */
export function limitText(limits) {
  if (!limits) return "none";
  const parts = [
    limits.requests_per_minute != null ? `${count(limits.requests_per_minute)} requests/min` : "",
    limits.tokens_per_minute != null ? `${count(limits.tokens_per_minute)} tokens/min` : "",
    limits.concurrent_requests != null ? `${count(limits.concurrent_requests)} at once` : "",
    limits.tokens_per_period != null
      ? `${count(limits.tokens_per_period)} tokens/${period(limits.period)}` : "",
    limits.budget ? `${dollars(limits.budget.nanousd)}/${period(limits.budget_period)}` : "",
  ];
  return parts.filter(Boolean).join(", ") || "none";
}

/** The fields of a form, filled with what holds now. */
export function limitFields(limits) {
  const whole = { type: "number", min: 0, hint: "empty: no limit" };
  return [
    { name: "rpm", label: "Requests a minute", value: limits?.requests_per_minute, ...whole },
    { name: "tpm", label: "Tokens a minute", value: limits?.tokens_per_minute, ...whole },
    { name: "concurrent", label: "Requests at once", value: limits?.concurrent_requests, ...whole },
    { name: "budget", label: "Budget a month, $", type: "number", min: 0, step: "any",
      value: limits?.budget?.usd, hint: "empty: no limit" },
  ];
}

/** What such a form says, as the API takes it; what the form has no field for stays as it was. */
export function limitsOf(values, before = null) {
  const number = (text) => (text === "" ? null : Number(text));
  const limits = {
    requests_per_minute: number(values.rpm), tokens_per_minute: number(values.tpm),
    concurrent_requests: number(values.concurrent),
    input_tokens_per_minute: before?.input_tokens_per_minute ?? null,
    output_tokens_per_minute: before?.output_tokens_per_minute ?? null,
    tokens_per_period: before?.tokens_per_period ?? null, period: before?.period ?? "day",
    budget_usd: values.budget || null,
    budget_period: before?.budget ? before.budget_period : "month",
  };
  const isSet = ["requests_per_minute", "tokens_per_minute", "concurrent_requests", "budget_usd",
    "input_tokens_per_minute", "output_tokens_per_minute", "tokens_per_period"]
    .some((name) => limits[name] !== null);
  return isSet ? limits : null;
}
