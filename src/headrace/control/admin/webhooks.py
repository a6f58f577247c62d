"""Routes for webhooks: where a tenant's events, or with no tenant all events, are sent."""

import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict
from headrace.base.ids import new_id
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Name, Reference, reject_id_as_name
from headrace.control.admin.values import RequestBody, moment
from headrace.spec.events import Delivery, Event, EventType, Webhook
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant
from headrace.spec.webhook_signature import secret_text, webhook_secret

router = APIRouter()

webhooks_max = 50  # of one tenant
deliveries_max = 100

Url = Annotated[str, Field(min_length=8, max_length=2048)]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=len(EventType))]
all_events: list[EventType] = [event for event in EventType if event is not EventType.TEST]


class WebhookCreate(RequestBody):
    """A new webhook; null as the tenant: of all tenants, for operators."""

    tenant: Reference | None = None
    name: Name | None = None
    url: Url
    events: EventTypes = all_events


class WebhookChange(RequestBody):
    """What is to change; what is not named stays."""

    url: Url | None = None
    events: EventTypes | None = None
    active: bool | None = None


class WebhookView(BaseModel):
    """A webhook without its secret."""

    id: str
    name: str
    tenant_id: str | None
    url: str
    events: list[EventType]
    active: bool
    create_time: datetime.datetime


class WebhookCreated(WebhookView):
    """A webhook with its signing secret, shown when it is made or rotated."""

    secret: str


class DeliveryView(BaseModel):
    """How the telling of one event stands."""

    event_id: str
    type: EventType
    state: str
    attempts: int
    next_attempt_time: datetime.datetime
    last_status: int | None
    last_error: str | None


class Deliveries(BaseModel):
    """The newest deliveries of a webhook."""

    items: list[DeliveryView]


@router.post("/webhooks", status_code=201)
@allows(Permission.WEBHOOK_WRITE)
def create_webhook(body: WebhookCreate, access: Access, context: Context) -> WebhookCreated:
    """Create a webhook; its secret signs what it is told."""
    if body.name is not None:
        reject_id_as_name(body.name)
    tenant = access.one_tenant(body.tenant)
    parent_id = "" if tenant is None else tenant.id
    context.egress.check_url(body.url)
    if len(context.database.store.list(Webhook, parent_id)) >= webhooks_max:
        raise Conflict(f"there are {webhooks_max} webhooks already; delete one first")
    webhook_id = new_id(Webhook.id_prefix, context.clock)
    webhook = context.database.store.create(
        Webhook(
            id=webhook_id,
            name=body.name or f"webhook-{webhook_id[-8:]}",
            parent_id=parent_id,
            create_time=context.clock.wall_s(),
            url=body.url,
            events=tuple(dict.fromkeys(body.events)),
        )
    )
    return _with_secret(context, webhook)


@router.get("/webhooks")
@allows(Permission.WEBHOOK_READ)
def list_webhooks(
    access: Access,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[WebhookView]:
    """List webhooks, of one tenant or of all."""
    parent_id = None if tenant is None else access.resolve(Tenant, tenant).id
    return page_of(access.visible.list(Webhook, parent_id), after, limit, _view)


@router.patch("/webhooks/{webhook}")
@allows(Permission.WEBHOOK_WRITE)
def update_webhook(
    webhook: str, body: WebhookChange, access: Access, context: Context
) -> WebhookView:
    """Change a webhook."""
    found = access.resolve(Webhook, webhook)
    changes: dict[str, object] = {}
    if body.url is not None:
        context.egress.check_url(body.url)
        changes["url"] = body.url
    if body.events is not None:
        changes["events"] = tuple(dict.fromkeys(body.events))
    if body.active is not None:
        changes["active"] = body.active
    return _view(context.database.store.update(msgspec.structs.replace(found, **changes)))


@router.post("/webhooks/{webhook}/rotate", status_code=201)
@allows(Permission.WEBHOOK_WRITE)
def rotate_webhook(webhook: str, access: Access, context: Context) -> WebhookCreated:
    """Give a webhook another signing secret; the old one signs nothing from now on."""
    found = access.resolve(Webhook, webhook)
    number = found.secret_number + 1
    changed = context.database.store.update(msgspec.structs.replace(found, secret_number=number))
    return _with_secret(context, changed)


@router.post("/webhooks/{webhook}/test", status_code=202)
@allows(Permission.WEBHOOK_WRITE)
def send_test_event(webhook: str, access: Access, context: Context) -> WebhookView:
    """Send a webhook a test event; its deliveries tell what came of it."""
    found = access.resolve(Webhook, webhook)
    event_id = new_id("evt", context.clock)
    context.database.events.add(
        Event(
            id=event_id,
            type=EventType.TEST,
            tenant_id=found.parent_id,
            occasion=f"test:{event_id}",
            create_time=context.clock.wall_s(),
        ),
        [found.id],
    )
    return _view(found)


@router.get("/webhooks/{webhook}/deliveries")
@allows(Permission.WEBHOOK_READ)
def list_deliveries(webhook: str, access: Access, context: Context) -> Deliveries:
    """List the newest deliveries of a webhook."""
    found = access.resolve(Webhook, webhook)
    deliveries = context.database.events.deliveries(found.id, deliveries_max)
    return Deliveries(items=[_delivery_view(delivery) for delivery in deliveries])


@router.delete("/webhooks/{webhook}", status_code=204)
@allows(Permission.WEBHOOK_WRITE)
def delete_webhook(webhook: str, access: Access, context: Context) -> None:
    """Forget a webhook, and what waits for it."""
    found = access.resolve(Webhook, webhook)
    context.database.store.delete(found)
    context.database.events.drop_webhook(found.id)


def _with_secret(context: AdminContext, webhook: Webhook) -> WebhookCreated:
    secret = webhook_secret(context.pepper, webhook)
    return WebhookCreated(**dict(_view(webhook)), secret=secret_text(secret))


def _view(webhook: Webhook) -> WebhookView:
    return WebhookView(
        id=webhook.id,
        name=webhook.name,
        tenant_id=webhook.parent_id or None,
        url=webhook.url,
        events=list(webhook.events),
        active=webhook.active,
        create_time=moment(webhook.create_time),
    )


def _delivery_view(delivery: Delivery) -> DeliveryView:
    return DeliveryView(
        event_id=delivery.event.id,
        type=delivery.event.type,
        state=delivery.state,
        attempts=delivery.attempts,
        next_attempt_time=moment(delivery.next_attempt_time),
        last_status=delivery.last_status,
        last_error=delivery.last_error,
    )
