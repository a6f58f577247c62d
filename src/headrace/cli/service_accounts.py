"""`headrace service-accounts`: programs that manage a tenant."""

from typing import Annotated, Literal

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.durations import parse_duration_s
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import comma_list, format_moment


class ServiceAccountView(msgspec.Struct, frozen=True):
    """What is shown of a service account."""

    id: str
    name: str
    tenant: str
    active: bool
    permissions: list[str]
    projects: list[str] | None
    models: list[str] | None
    endpoints: list[str] | None
    create_time: str
    expire_time: str | None
    token: str | None = None  # in the answer that made it alone


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "service-accounts", "Programs that manage a tenant: create, list, revoke.", app
    )
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "revoke")(revoke)


def create(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_` and `-`.")],
    *,
    tenant: Annotated[str, typer.Option(help="Which tenant it manages.")],
    role: Annotated[
        Literal["owner", "admin", "developer", "billing", "viewer"],
        typer.Option(help="What it may do there; never more than you."),
    ] = "developer",
    projects: Annotated[
        str | None, typer.Option(help="Only in these projects, comma-separated.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Its keys are for these models at most, comma-separated.")
    ] = None,
    endpoints: Annotated[
        str | None, typer.Option(help="Its keys are for these endpoints at most.")
    ] = None,
    expires_in: Annotated[str | None, typer.Option(help="How long it works, as 30d.")] = None,
) -> None:
    """Create a service account, and show its token this once."""
    body = {
        "tenant": tenant,
        "name": name,
        "role": role,
        "projects": comma_list(projects),
        "models": comma_list(models),
        "endpoints": comma_list(endpoints),
        "expires_in_s": None
        if expires_in is None
        else parse_duration_s(expires_in, "--expires-in"),
    }
    answer = platform.client.send("POST", "/service-accounts", body)
    platform.show(answer, ServiceAccountView, _fields)
    if not platform.as_json:
        output.note("Keep the token now: it can't be shown again.")


def list_all(
    platform: Platform,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """List service accounts, without their tokens."""
    platform.show_list(
        platform.client.list("/service-accounts", {"tenant": tenant}),
        ServiceAccountView,
        ("TENANT", "NAME", "ID", "ACTIVE", "EXPIRES"),
        lambda account: (
            account.tenant,
            account.name,
            account.id,
            "yes" if account.active else "no",
            format_moment(account.expire_time),
        ),
        empty="no service accounts; add one with `headrace service-accounts create NAME`",
    )


def revoke(
    platform: Platform,
    account: Annotated[str, typer.Argument(help="Its name or id.")],
) -> None:
    """Revoke a service account, for good."""
    answer = platform.client.send("POST", f"/service-accounts/{path_of(account)}/revoke")
    platform.show(answer, ServiceAccountView, _fields)


def _fields(account: ServiceAccountView) -> list[tuple[str, str]]:
    fields = [
        ("name", account.name),
        ("id", account.id),
        ("tenant", account.tenant),
        ("active", "yes" if account.active else "no"),
        ("permissions", ", ".join(account.permissions)),
        ("projects", _names(account.projects)),
        ("models", _names(account.models)),
        ("endpoints", _names(account.endpoints)),
        ("created", format_moment(account.create_time)),
        ("expires", format_moment(account.expire_time)),
    ]
    return fields if account.token is None else [*fields, ("token", account.token)]


def _names(names: list[str] | None) -> str:
    return "all" if names is None else ", ".join(names)
