// What a customer looks at: one tenant, or one project of it where only some are for them.

import { element } from "./dom.js";

/**
 * The view of who signed in: `tenant` and `usage` are queries that say whose invoices and whose
 * usage are meant, empty for operators, who see all. Who has several views chooses beside the name.
 */
export function chooseView({ is_operator, grants }, changed) {
  const views = is_operator ? [] : grants.flatMap(viewsOf);
  const view = { tenant: "", usage: "" };
  const look = (index) => Object.assign(view, views[index] ?? {});
  const before = Number(sessionStorage.getItem("view") ?? 0);
  const index = before < views.length ? before : 0;
  look(index);
  document.getElementById("view").replaceChildren(views.length < 2 ? "" : element("select", {
    id: "choose-view", "aria-label": "Whose figures are shown", change: (event) => {
      sessionStorage.setItem("view", event.target.value);
      look(Number(event.target.value));
      changed();
    },
  }, views.map(({ name }, each) => element("option", { value: each, selected: each === index }, name))));
  return view;
}

function viewsOf({ tenant_id, tenant, projects }) {
  const whole = `tenant=${encodeURIComponent(tenant_id)}`;
  if (projects === null) return [{ name: tenant, tenant: whole, usage: whole }];
  return projects.map(({ id, name }) => ({
    name: `${tenant} / ${name}`, tenant: whole, usage: `${whole}&project=${encodeURIComponent(id)}`,
  }));
}
