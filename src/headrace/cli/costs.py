"""`headrace costs`: what devices cost, for whom they worked, and what is left over.

Prices of devices are a YAML or JSON file:

    prices:
      H100: {usd_per_hour: "2.50", watts_busy: 700, watts_idle: 90}
      CPU: {usd_per_hour: "0.04"}
    usd_per_kwh: "0.25"          # of energy, where it is not in the prices already
    effective_time: 2026-12-01T00:00:00Z
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.cli.files import read_fields
from headrace.cli.output import format_dollars, note, write_json, write_table
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import MoneyView


class By(StrEnum):
    """How costs are divided."""

    DEPLOYMENT = "deployment"
    MODEL = "model"
    TENANT = "tenant"


class CostLineView(msgspec.Struct, frozen=True):
    """What something cost and brought in."""

    name: str
    device_hours: float
    busy_share: float | None
    cost: MoneyView
    idle_cost: MoneyView
    energy_cost: MoneyView
    revenue: MoneyView
    margin: MoneyView


class CostsView(msgspec.Struct, frozen=True):
    """The costs of a period."""

    total: CostLineView
    deployments: list[CostLineView]
    models: list[CostLineView]
    tenants: list[CostLineView]
    unpriced_device_types: list[str]


class DevicePricesView(msgspec.Struct, frozen=True):
    """What is shown of devices' prices."""

    id: str
    effective_time: str
    prices: dict[str, dict[str, object]]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("costs", "What devices cost, and the margin: show, prices.", app)
    platform_command(group, "show")(show)
    platform_command(group, "prices")(prices)


def show(
    platform: Platform,
    *,
    month: Annotated[str | None, typer.Option(help="A UTC month, as 2026-11.")] = None,
    first_day: Annotated[str | None, typer.Option(help="Instead of a month: 2026-11-03.")] = None,
    last_day: Annotated[str | None, typer.Option(help="The last day, included.")] = None,
    by: Annotated[By, typer.Option(help="How to divide them.")] = By.MODEL,
) -> None:
    """Show what the devices of a period cost, and what they brought in."""
    query = {"month": month, "first_day": first_day, "last_day": last_day}
    answer = platform.client.get("/costs", query)
    if platform.as_json:
        write_json(msgspec.Raw(answer))
        return
    costs = msgspec.json.decode(answer, type=CostsView)
    lines = {By.DEPLOYMENT: costs.deployments, By.MODEL: costs.models, By.TENANT: costs.tenants}[by]
    write_table(
        (
            by.value.upper(),
            ">DEVICE-HOURS",
            ">BUSY",
            ">COST",
            ">IDLE",
            ">ENERGY",
            ">REVENUE",
            ">MARGIN",
        ),
        [_row(line) for line in (*lines, costs.total)] if lines else [],
        empty="no device was held in this period",
    )
    if costs.unpriced_device_types:
        names = ", ".join(costs.unpriced_device_types)
        note(f"devices without a price, counted as free: {names}; see `headrace costs prices -f`")


def prices(
    platform: Platform,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Set them from now on: YAML or JSON.")
    ] = None,
) -> None:
    """Show or set what devices cost an hour."""
    if file is not None:
        answer = platform.client.send("POST", "/device-prices", read_fields(file))
        platform.show(
            answer,
            DevicePricesView,
            lambda view: [("id", view.id), ("from", view.effective_time), *_prices(view)],
        )
        return
    platform.show_list(
        platform.client.list("/device-prices"),
        DevicePricesView,
        ("ID", "FROM", "TYPES"),
        lambda view: (view.id, view.effective_time, ", ".join(view.prices)),
        empty="no prices of devices yet; set some with `headrace costs prices -f FILE`",
    )


def _prices(view: DevicePricesView) -> list[tuple[str, str]]:
    return [
        (name, f"{format_dollars(_nanousd(price))} an hour") for name, price in view.prices.items()
    ]


def _nanousd(price: dict[str, object]) -> int:
    return msgspec.convert(price["per_hour"], MoneyView).nanousd


def _row(line: CostLineView) -> tuple[str, ...]:
    return (
        line.name,
        f"{line.device_hours:,.2f}",
        "-" if line.busy_share is None else f"{line.busy_share:.0%}",
        format_dollars(line.cost.nanousd),
        format_dollars(line.idle_cost.nanousd),
        format_dollars(line.energy_cost.nanousd),
        format_dollars(line.revenue.nanousd),
        format_dollars(line.margin.nanousd),
    )
