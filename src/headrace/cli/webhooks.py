"""`headrace webhooks`: who is told when a budget, a quota or a credit runs low."""

from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import changes, comma_list, format_moment

WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its name or id.")]
Events = Annotated[
    str | None,
    typer.Option(help="budget.threshold,tokens.threshold,credit.low; default: all of them."),
]


class WebhookView(msgspec.Struct, frozen=True):
    """What is shown of a webhook."""

    id: str
    name: str
    tenant_id: str | None
    url: str
    events: list[str]
    active: bool
    create_time: str
    secret: str | None = None  # when it was made or rotated


class DeliveryView(msgspec.Struct, frozen=True):
    """What is shown of a delivery."""

    event_id: str
    type: str
    state: str
    attempts: int
    next_attempt_time: str
    last_status: int | None
    last_error: str | None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "webhooks",
        "Who is told of budgets: create, list, update, test, deliveries, rotate, delete.",
        app,
    )
    for command in (create, update, test, deliveries, rotate, delete):
        platform_command(group, command.__name__)(command)
    platform_command(group, "list")(list_all)


def create(
    platform: Platform,
    *,
    url: Annotated[str, typer.Option(help="Where events are sent: https://...")],
    events: Events = None,
    tenant: Annotated[
        str | None, typer.Option(help="Whose events; default: every tenant's.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name of your own.")] = None,
) -> None:
    """Create a webhook, and show the secret that signs its requests."""
    body = {"url": url, "events": comma_list(events), "tenant": tenant, "name": name}
    platform.show(platform.client.send("POST", "/webhooks", body), WebhookView, _fields)


def list_all(
    platform: Platform,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """List webhooks, without their secrets."""
    platform.show_list(
        platform.client.list("/webhooks", {"tenant": tenant}),
        WebhookView,
        ("NAME", "ID", "URL", "EVENTS", "ACTIVE"),
        lambda webhook: (
            webhook.name,
            webhook.id,
            webhook.url,
            ", ".join(webhook.events),
            "yes" if webhook.active else "no",
        ),
        empty="no webhooks yet; create one with `headrace webhooks create --url URL`",
    )


def update(
    platform: Platform,
    webhook: WebhookArgument,
    *,
    url: Annotated[str | None, typer.Option(help="Where events are sent: https://...")] = None,
    events: Events = None,
    active: Annotated[
        bool | None, typer.Option("--active/--off", help="Whether it is told anything.")
    ] = None,
) -> None:
    """Change a webhook: what is given."""
    body = changes({"url": url, "events": comma_list(events), "active": active})
    platform.show(platform.client.send("PATCH", _path(webhook), body), WebhookView, _fields)


def test(platform: Platform, webhook: WebhookArgument) -> None:
    """Send it a test event; `deliveries` tells what came of it."""
    answer = platform.client.send("POST", f"{_path(webhook)}/test")
    platform.show(answer, WebhookView, _fields)


def deliveries(platform: Platform, webhook: WebhookArgument) -> None:
    """List what it was told of late, and how that went."""
    platform.show_list(
        platform.client.get(f"{_path(webhook)}/deliveries"),
        DeliveryView,
        ("EVENT", "TYPE", "STATE", ">ATTEMPTS", "NEXT", "LAST"),
        lambda delivery: (
            delivery.event_id,
            delivery.type,
            delivery.state,
            str(delivery.attempts),
            format_moment(delivery.next_attempt_time) if delivery.state == "pending" else "-",
            delivery.last_error or str(delivery.last_status or "-"),
        ),
        empty="nothing was told yet; `headrace webhooks test WEBHOOK` sends a test event",
    )


def rotate(platform: Platform, webhook: WebhookArgument) -> None:
    """Give it another signing secret; the old one signs nothing from now on."""
    answer = platform.client.send("POST", f"{_path(webhook)}/rotate")
    platform.show(answer, WebhookView, _fields)


def delete(platform: Platform, webhook: WebhookArgument) -> None:
    """Forget a webhook, and what waits for it."""
    platform.client.send("DELETE", _path(webhook))
    if platform.as_json:
        output.write_json({"deleted": webhook})
    else:
        output.note(f"{webhook} is deleted")


def _path(webhook: str) -> str:
    return f"/webhooks/{path_of(webhook)}"


def _fields(webhook: WebhookView) -> list[tuple[str, str]]:
    fields = [
        ("name", webhook.name),
        ("id", webhook.id),
        ("of", webhook.tenant_id or "every tenant"),
        ("url", webhook.url),
        ("events", ", ".join(webhook.events)),
        ("active", "yes" if webhook.active else "no"),
        ("created", format_moment(webhook.create_time)),
    ]
    return fields if webhook.secret is None else [*fields, ("secret", webhook.secret)]
