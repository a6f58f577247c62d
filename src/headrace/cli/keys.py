"""`headrace keys`: what clients present."""

from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.durations import parse_duration_s
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
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment
from headrace.spec.api_key_format import parse_key

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="Its name or id; of its text only the id is sent.")
]


class KeyView(msgspec.Struct, frozen=True):
    """What is shown of a key."""

    id: str
    name: str
    project: str
    tenant: str
    state: str
    models: list[str] | None
    create_time: str
    expire_time: str | None
    limits: LimitsView | None = None
    key: str | None = None  # in the answer to its creation alone


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("keys", "What clients present: create, list, show, revoke.", app)
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "revoke")(revoke)


def create(
    platform: Platform,
    *,
    project: Annotated[str, typer.Option(help="Its project: name, tenant/name or id.")],
    name: Annotated[str | None, typer.Option(help="A name of your own.")] = None,
    models: Annotated[
        str | None, typer.Option(help="The models it may use, comma-separated; default: all.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="How long it works, as 12h or 30d; default: for ever.")
    ] = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    budget_usd: BudgetUsd = None,
    budget_period: BudgetPeriod = "day",
    tokens_per_day: TokensPerDay = None,
) -> None:
    """Create a key, and show it this once."""
    body = {
        "project": project,
        "name": name,
        "models": None if models is None else [m.strip() for m in models.split(",") if m.strip()],
        "expires_in_s": None
        if expires_in is None
        else parse_duration_s(expires_in, "--expires-in"),
        "limits": limits_body(
            rpm=rpm,
            tpm=tpm,
            concurrency=concurrency,
            budget_usd=budget_usd,
            budget_period=budget_period,
            tokens_per_day=tokens_per_day,
        ),
    }
    platform.show(platform.client.send("POST", "/keys", body), KeyView, _fields)
    if not platform.as_json:
        output.note("Keep the key now: it can't be shown again.")


def list_all(
    platform: Platform,
    *,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
) -> None:
    """List keys, without their secrets."""
    platform.show_list(
        platform.client.list("/keys", {"project": project}),
        KeyView,
        ("NAME", "ID", "PROJECT", "STATE", "MODELS", "EXPIRES"),
        lambda key: (
            key.name,
            key.id,
            f"{key.tenant}/{key.project}",
            key.state,
            _models(key),
            format_moment(key.expire_time),
        ),
        empty="no keys yet; create one with `headrace keys create --project PROJECT`",
    )


def show(platform: Platform, key: KeyArgument) -> None:
    """Show one key, without its secret."""
    platform.show(platform.client.get(f"/keys/{_path(key)}"), KeyView, _fields)


def revoke(platform: Platform, key: KeyArgument) -> None:
    """Revoke a key, for good."""
    answer = platform.client.send("POST", f"/keys/{_path(key)}/revoke")
    platform.show(answer, KeyView, _fields)


def _path(key: str) -> str:
    """The key's part of a path. Of a key's whole text only the id in it leaves this process."""
    parsed = parse_key(key)
    return path_of(key if parsed is None else parsed.key_id)


def _fields(key: KeyView) -> list[tuple[str, str]]:
    fields = [
        ("name", key.name),
        ("id", key.id),
        ("project", f"{key.tenant}/{key.project}"),
        ("state", key.state),
        ("models", _models(key)),
        ("created", format_moment(key.create_time)),
        ("expires", format_moment(key.expire_time)),
        *limit_fields(key.limits),
    ]
    return fields if key.key is None else [*fields, ("key", key.key)]


def _models(key: KeyView) -> str:
    return "all" if key.models is None else ", ".join(key.models)
