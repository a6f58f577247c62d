"""`headrace projects`: what a tenant groups work by."""

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
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment


class ProjectView(msgspec.Struct, frozen=True):
    """What is shown of a project."""

    id: str
    name: str
    tenant: str
    create_time: str
    limits: LimitsView | None = None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("projects", "What a tenant groups work by: create, list, update.", app)
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "update")(update)


def create(
    platform: Platform,
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_` and `-`.")],
    *,
    tenant: Annotated[str, typer.Option(help="Whose it is: a tenant's name or id.")],
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    budget_usd: BudgetUsd = None,
    budget_period: BudgetPeriod = "day",
    tokens_per_day: TokensPerDay = None,
) -> None:
    """Create a project."""
    body = {
        "name": name,
        "tenant": tenant,
        "limits": limits_body(
            rpm=rpm,
            tpm=tpm,
            concurrency=concurrency,
            budget_usd=budget_usd,
            budget_period=budget_period,
            tokens_per_day=tokens_per_day,
        ),
    }
    platform.show(platform.client.send("POST", "/projects", body), ProjectView, _fields)


def update(
    platform: Platform,
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Its name, tenant/name or id.")],
    *,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    budget_usd: BudgetUsd = None,
    budget_period: BudgetPeriod = "day",
    tokens_per_day: TokensPerDay = None,
) -> None:
    """Replace a project's limits by those given; without any it has none."""
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
    answer = platform.client.send("PATCH", f"/projects/{path_of(project, keep_slash=True)}", body)
    platform.show(answer, ProjectView, _fields)


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


def _fields(project: ProjectView) -> list[tuple[str, str]]:
    return [
        ("name", f"{project.tenant}/{project.name}"),
        ("id", project.id),
        ("created", format_moment(project.create_time)),
        *limit_fields(project.limits),
    ]
