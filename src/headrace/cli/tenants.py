"""`headrace tenants`: who pays, and what they have left."""

from typing import Annotated, Literal

import msgspec
import typer

from headrace.cli.admin_client import path_of
from headrace.cli.limit_options import (
    LimitOptions,
    LimitsView,
    NoLimits,
    limit_fields,
    limits_change,
)
from headrace.cli.output import format_dollars
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import MoneyView, changes, format_moment

PriorityHighest = Annotated[
    Literal["interactive", "standard", "batch"] | None,
    typer.Option(help="The highest priority of its requests; those that ask for more get this."),
]
TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Its name or id.")]


class TenantView(msgspec.Struct, frozen=True):
    """What is shown of a tenant."""

    id: str
    name: str
    active: bool
    credit_floor: MoneyView | None
    balance: MoneyView
    create_time: str
    priority_highest: str = "interactive"
    limits: LimitsView | None = None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("tenants", "Who pays: create, list, show, update, credit.", app)
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "update")(update)
    platform_command(group, "credit")(credit)


def create(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_` and `-`.")],
    *,
    postpaid: Annotated[
        bool, typer.Option("--postpaid", help="Let it spend without credit; invoices follow.")
    ] = False,
    credit_floor_usd: Annotated[
        str, typer.Option(help="How low a prepaid balance may go, in dollars.")
    ] = "0",
    credit_usd: Annotated[str | None, typer.Option(help="An opening credit, in dollars.")] = None,
    priority_highest: PriorityHighest = None,
    limits: LimitOptions,
) -> None:
    """Create a tenant; prepaid, so that it can spend what was credited, unless --postpaid."""
    body = {
        "name": name,
        "postpaid": postpaid,
        "credit_floor_usd": credit_floor_usd,
        "credit_usd": credit_usd,
        "priority_highest": priority_highest,
        "limits": limits.body(),
    }
    platform.show(platform.client.send("POST", "/tenants", body), TenantView, _fields)


def list_all(platform: Platform) -> None:
    """List tenants and their balances."""
    platform.show_list(
        platform.client.list("/tenants"),
        TenantView,
        ("NAME", "ID", ">BALANCE", ">FLOOR", "CREATED"),
        lambda tenant: (
            tenant.name,
            tenant.id,
            format_dollars(tenant.balance.nanousd),
            _floor(tenant),
            format_moment(tenant.create_time),
        ),
        empty="no tenants yet; create one with `headrace tenants create NAME`",
    )


def show(platform: Platform, tenant: TenantArgument) -> None:
    """Show one tenant."""
    platform.show(platform.client.get(f"/tenants/{path_of(tenant)}"), TenantView, _fields)


def update(
    platform: Platform,
    tenant: TenantArgument,
    *,
    priority_highest: PriorityHighest = None,
    credit_floor_usd: Annotated[
        str | None, typer.Option(help="How low its balance may go, in dollars.")
    ] = None,
    active: Annotated[
        bool | None, typer.Option("--active/--suspended", help="Whether its keys work.")
    ] = None,
    no_limits: NoLimits = False,
    limits: LimitOptions,
) -> None:
    """Change a tenant: what is given; limits that are given replace all of its limits."""
    body = {
        "priority_highest": priority_highest,
        "credit_floor_usd": credit_floor_usd,
        "active": active,
        **limits_change(limits, no_limits),
    }
    answer = platform.client.send("PATCH", f"/tenants/{path_of(tenant)}", changes(body))
    platform.show(answer, TenantView, _fields)


def credit(
    platform: Platform,
    tenant: TenantArgument,
    amount_usd: Annotated[str, typer.Argument(metavar="DOLLARS", help="How much, as 12.50.")],
    *,
    reason: Annotated[str, typer.Option(help="What for; kept in the ledger.")] = "credit",
    entry_id: Annotated[
        str | None, typer.Option(help="Your own id of this payment: it is booked once.")
    ] = None,
) -> None:
    """Add to a tenant's balance."""
    body = {"amount_usd": amount_usd, "reason": reason, "entry_id": entry_id}
    answer = platform.client.send("POST", f"/tenants/{path_of(tenant)}/credit", body)
    platform.show(answer, TenantView, _fields)


def _fields(tenant: TenantView) -> list[tuple[str, str]]:
    return [
        ("name", tenant.name),
        ("id", tenant.id),
        ("balance", format_dollars(tenant.balance.nanousd)),
        ("floor", _floor(tenant)),
        ("priority", f"{tenant.priority_highest} at most"),
        ("active", "yes" if tenant.active else "no"),
        ("created", format_moment(tenant.create_time)),
        *limit_fields(tenant.limits),
    ]


def _floor(tenant: TenantView) -> str:
    if tenant.credit_floor is None:
        return "postpaid"
    return format_dollars(tenant.credit_floor.nanousd)
