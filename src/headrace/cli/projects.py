"""`headrace projects`: what a tenant groups work by."""

from typing import Annotated

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
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import changes, format_moment

ProjectArgument = Annotated[
    str, typer.Argument(metavar="PROJECT", help="Its name, tenant/name or id.")
]


class ProjectView(msgspec.Struct, frozen=True):
    """What is shown of a project."""

    id: str
    name: str
    tenant: str
    create_time: str
    caches_answers: bool = False
    limits: LimitsView | None = None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "projects", "What a tenant groups work by: create, list, show, update.", app
    )
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "update")(update)


def create(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_` and `-`.")],
    *,
    tenant: Annotated[str, typer.Option(help="Whose it is: a tenant's name or id.")],
    limits: LimitOptions,
) -> None:
    """Create a project."""
    body = {"name": name, "tenant": tenant, "limits": limits.body()}
    platform.show(platform.client.send("POST", "/projects", body), ProjectView, _fields)


def update(
    platform: Platform,
    project: ProjectArgument,
    *,
    active: Annotated[
        bool | None, typer.Option("--active/--suspended", help="Whether its keys work.")
    ] = None,
    cache_answers: Annotated[
        bool | None,
        typer.Option(
            "--cache-answers/--no-cache-answers",
            help="Whether equal requests, soon after each other, are answered and charged once.",
        ),
    ] = None,
    no_limits: NoLimits = False,
    limits: LimitOptions,
) -> None:
    """Change a project: what is given; limits that are given replace all of its limits."""
    body = {
        "active": active,
        "caches_answers": cache_answers,
        **limits_change(limits, no_limits),
    }
    answer = platform.client.send("PATCH", _path(project), changes(body))
    platform.show(answer, ProjectView, _fields)


def show(platform: Platform, project: ProjectArgument) -> None:
    """Show one project."""
    platform.show(platform.client.get(_path(project)), ProjectView, _fields)


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


def _path(project: str) -> str:
    return f"/projects/{path_of(project, keep_slash=True)}"


def _fields(project: ProjectView) -> list[tuple[str, str]]:
    return [
        ("name", f"{project.tenant}/{project.name}"),
        ("id", project.id),
        ("created", format_moment(project.create_time)),
        *([("cache", "equal requests are answered once")] if project.caches_answers else []),
        *limit_fields(project.limits),
    ]
