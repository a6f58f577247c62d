// What this platform is, one's own account, and where everything else is set.

import { change, get } from "./api.js";
import { ask } from "./dialog.js";
import { button, card, element, facts, to } from "./dom.js";
import { count } from "./format.js";

export const settings = {
  title: "Settings", group: "Platform",

  async load() {
    const [status, methods] = await Promise.all([get("/status"), get("/auth/methods")]);
    return { status, methods };
  },

  render({ status, methods }, _, caller) {
    return [
      card("This platform", null, null, facts([
        ["Version", status.version],
        ["Gateway", element("code", {}, status.gateway_url ?? "not known")],
        ["Changes of the store", count(status.revision)],
        ["Single sign-on", methods.single_sign_on_path ? "on" : "off"],
        ["Payments", status.payment_provider ?? "off"],
        ["Metrics", element("code", {}, "/metrics on this port and the gateway's")],
      ])),
      card("You", null, caller.kind === "user" || caller.kind === "person"
        ? button("Change password", () => changePassword(), { id: "change-password" }) : null,
      facts([
        ["Name", caller.name], ["Signed in as", caller.kind.replaceAll("_", " ")],
        ["Operator", caller.is_operator ? "yes: everything" : "no"],
        ...caller.grants.map((grant) => [grant.tenant, grant.permissions.join(", ")]),
      ])),
      caller.is_operator ? card("Where everything else is set", null, null,
        element("ul", { class: "plain" },
          element("li", {}, to("Objectives, aliases and traffic of models", "models")),
          element("li", {}, to("Limits of tenants and projects", "tenants")),
          element("li", {}, to("Prices", "prices")),
          element("li", {}, to("Who invoices are from, taxes, currencies and discounts", "terms")),
          element("li", {}, to("How tenants pay", "payments")),
          element("li", {}, "Addresses, databases and certificates: options and environment of ",
            element("code", {}, "headrace up"), ", which ", element("code", {}, "headrace doctor"),
            " checks"))) : null,
    ];
  },
};

function changePassword() {
  ask("Change your password", [
    { name: "password", label: "Password now", type: "password", required: true },
    { name: "next", label: "New password", type: "password", required: true },
  ], "Change", async ({ password, next }) => {
    await change("POST", "/auth/password", { password, new_password: next });
    location.reload();
  }, { text: "Every session of your account ends, this one too." });
}
