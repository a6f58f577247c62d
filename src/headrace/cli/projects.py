"""`headrace projects`: what a tenant groups work by."""

from typing import Annotated

import msgspec
import typer

from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment


class ProjectView(msgspec.Struct, frozen=True):
    """What is shown of a project."""

    id: str
    name: str
    tenant: str
    create_time: str


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("projects", "What a tenant groups work by: create, list.", app)
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)


def create(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_` and `-`.")],
    *,
    tenant: Annotated[str, typer.Option(help="Whose it is: a tenant's name or id.")],
) -> None:
    """Create a project."""
    answer = platform.client.send("POST", "/projects", {"name": name, "tenant": tenant})
    platform.show(
        answer,
        ProjectView,
        lambda project: [
            ("name", f"{project.tenant}/{project.name}"),
            ("id", project.id),
            ("created", format_moment(project.create_time)),
        ],
    )


def list_all(
    platform: Platform,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """List projects."""
    platform.show_list(
        platform.client.list("/projects", {"tenant": tenant}),
        ProjectView,
        ("PROJECT", "ID", "CREATED"),
        lambda project: (
            f"{project.tenant}/{project.name}",
            project.id,
            format_moment(project.create_time),
        ),
        empty="no projects yet; create one with `headrace projects create NAME --tenant TENANT`",
    )
