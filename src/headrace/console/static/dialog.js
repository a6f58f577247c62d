// Forms and secrets in native dialogs: focus stays inside, Escape closes, errors are told in place.

import { element, snippet } from "./dom.js";

/**
 * Ask for values and do something with them. `fields` are `{name, label, type, value, options,
 * hint, required}`, and of several `lines` if they say so; `submit(values)` may throw, which keeps
 * the dialog open with the reason.
 */
export function ask(title, fields, verb, submit, { danger = false, text = "" } = {}) {
  const problem = element("p", { class: "problem", role: "alert" });
  const inputs = fields.map((field) => [field, input(field)]);
  const go = element("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" },
    element("form", {
      class: "stack", submit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        problem.textContent = "";
        try {
          const values = Object.fromEntries(inputs.map(([field, node]) =>
            [field.name, node.value.trim()]));
          await submit(values);
          dialog.close();
        } catch (error) {
          problem.textContent = error.message;
        } finally {
          go.disabled = false;
        }
      },
    },
    element("h2", { id: "dialog-title" }, title),
    text ? element("p", { class: "muted" }, text) : null,
    element("div", { class: "fields" }, inputs.map(([field, node]) =>
      element("div", { class: field.wide ? "field wide" : "field" },
        element("label", { for: `field-${field.name}` }, field.label), node,
        field.hint ? element("div", { class: "muted small" }, field.hint) : null))),
    problem,
    element("div", { class: "buttons" },
      element("button", { type: "button", click: () => dialog.close() }, "Cancel"), go)));
  open(dialog);
}

/** Show something that can't be shown again. */
export function reveal(title, secret, text) {
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" },
    element("div", { class: "stack" },
      element("h2", { id: "dialog-title" }, title),
      element("p", { class: "muted" }, text),
      snippet(secret, "secret"),
      element("div", { class: "buttons" }, element("button", {
        type: "button", class: "primary", id: "done", click: () => dialog.close(),
      }, "I have copied it"))));
  open(dialog);
}

let opener; // the id of what opened the first of the dialogs that are open

function open(dialog) {
  if (!document.querySelector("dialog")) opener = document.activeElement?.id;
  dialog.addEventListener("close", () => {
    dialog.remove();
    // What opened it was drawn anew meanwhile, so that the browser's own way back is lost.
    const isLost = document.activeElement === document.body && !document.querySelector("dialog");
    if (opener && isLost) document.getElementById(opener)?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}

function input(field) {
  const properties = { id: `field-${field.name}`, name: field.name, required: field.required };
  if (field.options) {
    return element("select", properties, field.options.map(([value, text]) =>
      element("option", { value, selected: value === field.value }, text)));
  }
  if (field.lines) {
    return element("textarea", { ...properties, rows: field.lines, placeholder: field.placeholder,
      spellcheck: "false" }, field.value ?? "");
  }
  return element("input", { ...properties, type: field.type ?? "text", value: field.value ?? "",
    min: field.min, max: field.max, step: field.step, placeholder: field.placeholder, autocomplete: "off",
    spellcheck: "false" });
}
