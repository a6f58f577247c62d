"""`headrace users`: people with accounts on this platform."""

from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import changes, format_moment

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="A login or id.")]
Operator = Annotated[
    bool | None,
    typer.Option("--operator/--no-operator", help="Whether everything is open to this person."),
]


class UserView(msgspec.Struct, frozen=True):
    """What is shown of a person."""

    id: str
    login: str
    display_name: str
    email: str
    is_operator: bool
    active: bool
    single_sign_on: bool
    create_time: str
    initial_password: str | None = None  # in the answer that made it alone


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("users", "People with accounts: create, list, show, update.", app)
    for command in (create, show, update):
        platform_command(group, command.__name__)(command)
    platform_command(group, "list")(list_all)


def create(
    platform: Platform,
    login: Annotated[str, typer.Argument(help="What they sign in with.")],
    *,
    display_name: Annotated[str, typer.Option(help="Their name.")] = "",
    email: Annotated[str, typer.Option(help="Their address.")] = "",
    operator: Operator = None,
) -> None:
    """Create a local account, with a password that is shown this once."""
    body = {
        "login": login,
        "display_name": display_name,
        "email": email,
        "is_operator": bool(operator),
    }
    platform.show(platform.client.send("POST", "/users", body), UserView, _fields)
    if not platform.as_json:
        output.note("Hand the password over now: it can't be shown again.")


def list_all(platform: Platform) -> None:
    """List people."""
    platform.show_list(
        platform.client.list("/users"),
        UserView,
        ("LOGIN", "ID", "OPERATOR", "ACTIVE", "CREATED"),
        lambda user: (
            user.login,
            user.id,
            _yes(user.is_operator),
            _yes(user.active),
            format_moment(user.create_time),
        ),
        empty="no people yet; add one with `headrace users create LOGIN`",
    )


def show(platform: Platform, user: UserArgument) -> None:
    """Show one person."""
    platform.show(platform.client.get(f"/users/{path_of(user)}"), UserView, _fields)


def update(
    platform: Platform,
    user: UserArgument,
    *,
    operator: Operator = None,
    active: Annotated[
        bool | None, typer.Option("--active/--closed", help="Whether they may sign in.")
    ] = None,
    display_name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    email: Annotated[str | None, typer.Option(help="Another address.")] = None,
) -> None:
    """Change an account: what is given."""
    body = changes(
        {
            "is_operator": operator,
            "active": active,
            "display_name": display_name,
            "email": email,
        }
    )
    answer = platform.client.send("PATCH", f"/users/{path_of(user)}", body)
    platform.show(answer, UserView, _fields)


def _fields(user: UserView) -> list[tuple[str, str]]:
    fields = [
        ("login", user.login),
        ("id", user.id),
        ("name", user.display_name or "-"),
        ("e-mail", user.email or "-"),
        ("operator", _yes(user.is_operator)),
        ("active", _yes(user.active)),
        ("signs in by", "single sign-on" if user.single_sign_on else "password"),
        ("created", format_moment(user.create_time)),
    ]
    made = user.initial_password
    return fields if made is None else [*fields, ("password", made)]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
