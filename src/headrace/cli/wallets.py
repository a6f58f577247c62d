"""`headrace wallets`: credit granted to tenants, in the order in which it is used, and entries."""

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.durations import parse_duration_s
from headrace.cli.output import format_dollars
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import MoneyView, format_moment

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Its name or id.")]


class Kind(StrEnum):
    """Where a grant's money came from."""

    PREPAID = "prepaid"
    PROMOTIONAL = "promotional"


class GrantView(msgspec.Struct, frozen=True):
    """What is shown of a grant."""

    id: str
    kind: str
    priority: int
    amount: MoneyView
    left: MoneyView
    expired: MoneyView | None
    expire_time: str | None
    reason: str


class EntryView(msgspec.Struct, frozen=True):
    """What changed a balance."""

    amount: MoneyView
    reason: str
    post_time: str


class Wallet(msgspec.Struct, frozen=True):
    """All that a tenant can spend."""

    tenant: str
    balance: MoneyView
    grants: list[GrantView]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("wallets", "Credit of tenants: entries, grant, list.", app)
    platform_command(group, "entries")(entries)
    platform_command(group, "grant")(grant)
    platform_command(group, "list")(list_all)


def grant(
    platform: Platform,
    tenant: TenantArgument,
    amount_usd: Annotated[str, typer.Argument(metavar="DOLLARS", help="How much, as 12.50.")],
    *,
    kind: Annotated[Kind, typer.Option(help="Paid for, or given.")] = Kind.PREPAID,
    priority: Annotated[
        int, typer.Option(min=0, max=100, help="Lower is used first; then what expires first.")
    ] = 50,
    expires_in: Annotated[
        str | None, typer.Option(help="Take back what is left after 30d, 12h; default: never.")
    ] = None,
    reason: Annotated[str, typer.Option(help="What for; kept in the ledger.")] = "",
) -> None:
    """Grant credit to a tenant."""
    body = {
        "amount_usd": amount_usd,
        "kind": kind.value,
        "priority": priority,
        "expires_in_s": None
        if expires_in is None
        else parse_duration_s(expires_in, "--expires-in"),
        "reason": reason,
    }
    answer = platform.client.send("POST", f"/tenants/{path_of(tenant)}/grants", body)
    platform.show(answer, GrantView, _fields)


def entries(platform: Platform, tenant: TenantArgument) -> None:
    """List what changed a tenant's balance beside its requests, the newest first."""
    platform.show_list(
        platform.client.list(f"/tenants/{path_of(tenant)}/entries"),
        EntryView,
        ("WHEN", ">AMOUNT", "WHAT"),
        lambda entry: (
            format_moment(entry.post_time),
            format_dollars(entry.amount.nanousd),
            entry.reason,
        ),
        empty=f"nothing was booked yet; grant credit with `headrace wallets grant {tenant} 10`",
    )


def list_all(platform: Platform, tenant: TenantArgument) -> None:
    """List a tenant's grants and what is left of each."""
    answer = platform.client.get(f"/tenants/{path_of(tenant)}/wallet")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    wallet = msgspec.json.decode(answer, type=Wallet)
    output.write_fields([("balance", format_dollars(wallet.balance.nanousd))])
    output.write_table(
        ("ID", "KIND", ">PRIORITY", ">AMOUNT", ">LEFT", "EXPIRES", "REASON"),
        [
            (
                each.id,
                each.kind,
                str(each.priority),
                format_dollars(each.amount.nanousd),
                format_dollars(each.left.nanousd) if each.expired is None else "expired",
                "never" if each.expire_time is None else format_moment(each.expire_time),
                each.reason,
            )
            for each in wallet.grants
        ],
        empty=f"no grants yet; make one with `headrace wallets grant {wallet.tenant} 10`",
    )


def _fields(each: GrantView) -> list[tuple[str, str]]:
    return [
        ("id", each.id),
        ("amount", format_dollars(each.amount.nanousd)),
        ("priority", str(each.priority)),
        ("expires", "never" if each.expire_time is None else format_moment(each.expire_time)),
    ]
