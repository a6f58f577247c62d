// Who pays and what they present: tenants with their balances, and keys without their secrets.

import { list } from "./api.js";
import { badge, element, table } from "./dom.js";
import { age, dollars } from "./format.js";
import { toneOfKey } from "./states.js";

export const access = {
  title: "Tenants and keys",

  async load() {
    const [tenants, keys] = await Promise.all([list("/tenants"), list("/keys")]);
    return { tenants, keys };
  },

  render({ tenants, keys }) {
    return [
      element("section", { class: "card" }, element("h2", {}, "Tenants"),
        table("Tenants and balances", [
          { label: "Tenant", title: true, value: (row) => element("strong", {}, row.name) },
          { label: "Billing", value: (row) => (row.postpaid ? "postpaid" : "prepaid") },
          { label: "Balance", number: true, value: (row) => element("span", {
            title: `$${row.balance.usd}` }, dollars(row.balance.nanousd)) },
          { label: "Floor", number: true, value: (row) =>
            (row.credit_floor ? dollars(row.credit_floor.nanousd) : "none") },
          { label: "Created", number: true, value: (row) => age(row.create_time) },
        ], tenants, ["No tenants yet.", element("code", {}, "headrace tenants create NAME")])),
      element("section", { class: "card" }, element("h2", {}, "API keys"),
        table("API keys", [
          { label: "Key", title: true, value: (row) => element("strong", {}, row.name) },
          { label: "Project", value: (row) => `${row.tenant} / ${row.project}` },
          { label: "Id", value: (row) => element("span", { class: "mono" }, row.id) },
          { label: "Models", value: (row) => (row.models ? row.models.join(", ") : "all") },
          { label: "State", value: (row) => badge(row.state, toneOfKey[row.state]) },
          { label: "Expires", value: (row) => (row.expire_time ? age(row.expire_time) : "never") },
        ], keys, ["No keys yet.",
          element("code", {}, "headrace keys create --project PROJECT")])),
    ];
  },
};
