// What devices cost, what was earned with them, and what is left, by model, deployment and tenant.

import { change, get, list } from "./api.js";
import { ask } from "./dialog.js";
import { badge, button, card, element, meter, table, to } from "./dom.js";
import { dollars, moment, share, thisMonth } from "./format.js";
import { tile } from "./page-overview.js";

export const costs = {
  title: "Costs", group: "Money", needs: "operator", ticks: true,

  async load() {
    const [found, prices, nodes] = await Promise.all([
      get(`/costs?month=${thisMonth()}`), list("/device-prices"),
      list("/nodes").catch(() => []),
    ]);
    return { found, prices, nodes };
  },

  render({ found, prices, nodes }, refresh) {
    const { total, unpriced_device_types: unpriced } = found;
    return [
      card("Costs", `what devices cost and what is left, ${found.first_day} to ${found.last_day}, UTC`,
        button("Price devices", () => price(nodes, refresh), { id: "price-devices", look: "primary" }),
        element("dl", { class: "tiles plain-tiles" },
          tile("Revenue", to(dollars(total.revenue.nanousd), "requests", { since: found.first_day }),
            "from the ledger"),
          tile("Cost of devices", dollars(total.cost.nanousd),
            `${dollars(total.idle_cost.nanousd)} of it idle`),
          tile("Margin", dollars(total.margin.nanousd), "revenue less devices"),
          tile("Busy", total.busy_share === null ? "–" : share(total.busy_share),
            `of ${total.device_hours.toFixed(2)} device-hours`)),
        unpriced.length === 0 ? null : element("p", { class: "status-line" },
          badge("unpriced", "warn"), `${unpriced.join(", ")}: held, and counted as costing nothing`)),
      lines("By model", found.models, (row) => to(row.name, "requests", { model: row.name })),
      lines("By deployment", found.deployments, (row) =>
        (row.id ? to(row.name, "deployment", { id: row.id }) : row.name)),
      lines("By tenant", found.tenants, (row) =>
        (row.id ? to(row.name, "requests", { tenant: row.id }) : row.name)),
      card("Prices of devices", "an hour each; older days keep what they cost", null,
        table("Prices of devices", [
          { label: "Device", title: true, value: (row) => element("strong", {}, row.type) },
          { label: "An hour", number: true, value: (row) => dollars(row.price.per_hour.nanousd) },
          { label: "Watts, busy", number: true, value: (row) => row.price.watts_busy },
          { label: "Watts, idle", number: true, value: (row) => row.price.watts_idle },
          { label: "From (UTC)", value: (row) => moment(row.book.effective_time) },
        ], [...prices].reverse().flatMap((book) => Object.entries(book.prices).map(
          ([type, each]) => ({ type, price: each, book }))), "Devices have no price yet.")),
    ];
  },
};

function lines(title, items, name) {
  return card(title, null, null, table(title, [
    { label: "Name", title: true, value: (row) => element("strong", {}, name(row)) },
    { label: "Revenue", number: true, value: (row) => dollars(row.revenue.nanousd) },
    { label: "Cost", number: true, value: (row) => dollars(row.cost.nanousd) },
    { label: "Of it idle", number: true, value: (row) => dollars(row.idle_cost.nanousd) },
    { label: "Margin", number: true, value: (row) => element("strong", {},
      dollars(row.margin.nanousd)) },
    { label: "Busy", value: (row) => (row.busy_share === null ? "–" : element("span",
      { class: "near" }, meter(row.busy_share, `${row.name} busy`, false), share(row.busy_share))) },
  ], items, "Nothing ran in this time."));
}

function price(nodes, refresh) {
  const types = [...new Set(nodes.flatMap((node) => node.devices.map((device) => device.type)))];
  ask("What a device costs", [
    { name: "type", label: "Device", options: (types.length > 0 ? types : ["CPU"]).map((type) =>
      [type, type]) },
    { name: "hour", label: "An hour, $", type: "number", min: 0, step: "any", required: true },
  ], "Save", async ({ type, hour }) => {
    await change("POST", "/device-prices", { prices: { [type]: { usd_per_hour: hour } } });
    await refresh();
  }, { text: "From now on. Energy and several devices at once: headrace costs prices." });
}
