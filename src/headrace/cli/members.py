"""`headrace members`: who has which role in a tenant."""

from typing import Annotated, Literal

import msgspec
import typer

from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment

Tenant = Annotated[str, typer.Option(help="Whose member: a tenant's name or id.")]
User = Annotated[str, typer.Argument(metavar="USER", help="A login or id.")]
Role = Annotated[
    Literal["owner", "admin", "developer", "billing", "viewer"],
    typer.Option(help="What they may do there."),
]


class MemberView(msgspec.Struct, frozen=True):
    """What is shown of a member."""

    id: str
    tenant: str
    user_id: str
    login: str
    role: str
    from_single_sign_on: bool
    create_time: str


class Members(msgspec.Struct, frozen=True):
    """A list of members."""

    items: list[MemberView]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("members", "Roles of people in tenants: add, list, remove.", app)
    platform_command(group, "add")(add)
    platform_command(group, "list")(list_all)
    platform_command(group, "remove")(remove)


def add(platform: Platform, user: User, *, tenant: Tenant, role: Role = "viewer") -> None:
    """Give a person a role in a tenant, in place of the one they had."""
    body = {"tenant": tenant, "user": user, "role": role}
    platform.show(platform.client.send("PUT", "/members", body), MemberView, _fields)


def list_all(
    platform: Platform,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """List members and their roles."""
    platform.show_list(
        platform.client.list("/members", {"tenant": tenant}),
        MemberView,
        ("TENANT", "LOGIN", "ROLE", "ID", "SINCE"),
        lambda member: (
            member.tenant,
            member.login,
            member.role,
            member.id,
            format_moment(member.create_time),
        ),
        empty="no members yet; add one with `headrace members add USER --tenant TENANT`",
    )


def remove(platform: Platform, user: User, *, tenant: Tenant) -> None:
    """Take a person's role in a tenant away."""
    answer = platform.client.list("/members", {"tenant": tenant})
    members = msgspec.json.decode(answer, type=Members).items
    found = [member for member in members if user in (member.login, member.user_id)]
    member_id = found[0].id if found else user
    answer = platform.client.send("DELETE", f"/members/{path_of(member_id)}")
    platform.show(answer, MemberView, _fields)


def _fields(member: MemberView) -> list[tuple[str, str]]:
    return [
        ("tenant", member.tenant),
        ("login", member.login),
        ("role", member.role),
        ("given by", "single sign-on" if member.from_single_sign_on else "an owner or operator"),
        ("id", member.id),
        ("since", format_moment(member.create_time)),
    ]
