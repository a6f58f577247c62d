"""`headrace tenants`: who pays, and what they have left."""

from typing import Annotated

import msgspec
import typer

from headrace.cli.admin_client import path_of
from headrace.cli.limit_options import (
    BudgetPeriod,
    BudgetUsd,
    Concurrency,
    LimitsView,
    Rpm,
    TokensPerDay,
    Tpm,
    limit_fields,
    limits_body,
)
from headrace.cli.output import format_dollars
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import MoneyView, format_moment

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Its name or id.")]


class TenantView(msgspec.Struct, frozen=True):
    """What is shown of a tenant."""

    id: str
    name: str
    active: bool
    credit_floor: MoneyView | None
    balance: MoneyView
    create_time: str
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
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    budget_usd: BudgetUsd = None,
    budget_period: BudgetPeriod = "day",
    tokens_per_day: TokensPerDay = None,
) -> None:
    """Create a tenant; prepaid, so that it can spend what was credited, unless --postpaid."""
    body = {
        "name": name,
        "postpaid": postpaid,
        "credit_floor_usd": credit_floor_usd,
        "credit_usd": credit_usd,
        "limits": limits_body(
            rpm=rpm,
            tpm=tpm,
            concurrency=concurrency,
            budget_usd=budget_usd,
            budget_period=budget_period,
            tokens_per_day=tokens_per_day,
        ),
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
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    budget_usd: BudgetUsd = None,
    budget_period: BudgetPeriod = "day",
    tokens_per_day: TokensPerDay = None,
) -> None:
    """Replace a tenant's limits by those given; without any it has none."""
    body = {
        "limits": limits_body(
            rpm=rpm,
            tpm=tpm,
            concurrency=concurrency,
            budget_usd=budget_usd,
            budget_period=budget_period,
            tokens_per_day=tokens_per_day,
        )
        or {},
    }
    answer = platform.client.send("PATCH", f"/tenants/{path_of(tenant)}", body)
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
        ("active", "yes" if tenant.active else "no"),
        ("created", format_moment(tenant.create_time)),
        *limit_fields(tenant.limits),
    ]


def _floor(tenant: TenantView) -> str:
    if tenant.credit_floor is None:
        return "postpaid"
    return format_dollars(tenant.credit_floor.nanousd)
