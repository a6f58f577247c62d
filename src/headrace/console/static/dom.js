// Builds elements from plain values. Text is always text: nothing from a server becomes markup.

/** Make an element. `properties` are attributes; a function value is an event listener. */
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Make an SVG element, in the same way. */
export function drawing(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") {
      node.addEventListener(name, value);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const rowsAtFirst = 50;
const views = new Map(); // by page and caption: what is looked for in a long table, how far it is open

/**
 * Make a table. Each column is `{label, value(row), number, title}`. On a phone a row is a card, its
 * `title` column first and the others labelled, and so are the `totals`. `empty` replaces a table
 * without rows. The roles say what the elements are even where the style makes blocks of them. A
 * long table shows its first rows, with a field that finds others.
 */
export function table(caption, columns, rows, empty, totals = null) {
  if (rows.length === 0) {
    return element("div", { class: "empty" }, empty);
  }
  if (rows.length <= rowsAtFirst) return tableOf(caption, columns, rows, totals);
  const place = `${location.hash} ${caption}`;
  const view = views.get(place) ?? { text: "", length: rowsAtFirst };
  views.set(place, view);
  const texts = rows.map((row) => JSON.stringify(row).toLowerCase());
  const body = element("div", {});
  const draw = () => {
    const found = rows.filter((_, index) => texts[index].includes(view.text.toLowerCase()));
    const more = Math.min(found.length, view.length);
    body.replaceChildren(
      found.length > 0 ? tableOf(caption, columns, found.slice(0, more), totals)
        : element("div", { class: "empty" }, `Nothing here has “${view.text}” in it.`),
      element("div", { class: "more" },
        element("span", { class: "muted small", role: "status" },
          `${more.toLocaleString("en")} of ${found.length.toLocaleString("en")}`),
        more < found.length ? button("Show more", () => {
          view.length *= 4;
          draw();
        }, { label: `Show more ${caption}` }) : null));
  };
  draw();
  return element("div", {}, element("input", {
    class: "find", type: "search", id: `find-${caption.toLowerCase().replaceAll(" ", "-")}`,
    "aria-label": `Find in ${caption}`, placeholder: "Find", autocomplete: "off", spellcheck: "false",
    value: view.text, input: (event) => {
      view.text = event.target.value.trim();
      view.length = rowsAtFirst;
      draw();
    },
  }), body);
}

function tableOf(caption, columns, rows, totals) {
  const kind = (column) =>
    [column.number ? "number" : "", column.title ? "title" : ""].join(" ").trim() || null;
  const line = (row) =>
    element("tr", { role: "row" }, columns.map((column) =>
      element("td", { role: "cell", class: kind(column), "data-label": column.label },
        element("div", {}, column.value(row)))));
  return element("div", { class: "scroll" }, element("table", { role: "table" },
    element("caption", {}, caption),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, columns.map((column) =>
      element("th", { role: "columnheader", scope: "col", class: kind(column) },
        column.label || element("span", { class: "unseen" }, "Actions"))))),
    element("tbody", { role: "rowgroup" }, rows.map(line)),
    !totals ? null : element("tfoot", { role: "rowgroup" }, line(totals))));
}

/** Make a block of code with a button that copies it. */
export function snippet(text, label) {
  const id = label.replaceAll(" ", "-");
  const button = element("button", {
    type: "button",
    id: `copy-${id}`,
    "aria-label": `Copy ${label}`,
    click: async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    },
  }, "Copy");
  return element("div", { class: "snippet" },
    element("pre", { id, tabindex: "0", role: "region", "aria-label": label },
      element("code", {}, text)),
    navigator.clipboard ? button : null);
}

/** Make a state's badge; the word says what the colour says. */
export function badge(text, tone) {
  return element("span", { class: `badge ${tone}` }, text);
}

/** Make a card with a heading, a note beside it, and actions at its end. */
export function card(title, note, actions, ...content) {
  return element("section", { class: "card" },
    element("div", { class: "card-head" },
      element("div", {}, element("h2", {}, title),
        note ? element("div", { class: "muted small" }, note) : null),
      actions ? element("div", { class: "actions" }, actions) : null),
    ...content);
}

/** Make a button. */
export function button(text, act, { id, look = "", label } = {}) {
  return element("button", { type: "button", id, class: look || null, "aria-label": label,
    click: act }, text);
}

/** The way to a list's older part, `next`, and back from one that begins `after` something. */
export function pager(page, parameters, after, next) {
  return element("div", { class: "buttons pages" },
    after ? button("Back", () => history.back(), { id: "page-back" }) : null,
    next ? to("Older", page, { ...parameters, after: next }, { class: "button", id: "page-older" }) : null);
}

/** Make a bar that shows how much of something is used; the words beside it say the same. It warns
    near its end, unless all of it is what is wanted. */
export function meter(share, label, warns = true) {
  const tone = !warns ? "good" : share >= 0.97 ? "bad" : share >= 0.8 ? "warn" : "good";
  return element("progress", { class: `meter ${tone}`, max: 1, value: Math.min(1, share),
    "aria-label": label });
}

/** Make a link to the rows or the page that something is about: `to("keys", "requests", {key})`. */
export function to(content, page, parameters = {}, properties = {}) {
  const known = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = known.length > 0 ? `?${new URLSearchParams(known)}` : "";
  return element("a", { class: "rows", href: `#/${page}${query}`, ...properties }, content);
}

/** Make a list of names and values; what has no value is left out. */
export function facts(pairs) {
  return element("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}
