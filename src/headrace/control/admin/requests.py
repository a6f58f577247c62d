"""The route for settled requests one by one: what stands behind every number of usage and cost."""

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.pages import page_items_default, page_items_max
from headrace.control.admin.usage import UsageQuery, filters_of
from headrace.control.admin.values import Money, moment, wall_s_of
from headrace.spec.deployments import Replica
from headrace.spec.prices import PriceBook
from headrace.spec.roles import Permission
from headrace.spec.settlements import Outcome
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage.settlement_rows import SettledRequest

router = APIRouter()


class RequestQuery(UsageQuery):
    """Which requests; `by` is of no use here."""

    outcome: Outcome | None = None
    replica: Annotated[str, Field(max_length=64)] | None = None  # its id
    limit: Annotated[int, Field(ge=1, le=page_items_max)] = page_items_default
    after: Annotated[str, Field(max_length=200)] = ""  # `next` of the page before


class RequestView(BaseModel):
    """One settled request; without a cost it is unrated."""

    id: str
    settle_time: datetime.datetime
    tenant_id: str
    tenant: str
    project: str
    key_id: str
    key: str
    model: str
    outcome: str
    counted_by: str  # engine: its own count; counted: by what passed the gateway
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None  # null: nobody counted them, here and below
    draft_tokens: int | None = None
    embedding_tokens: int | None = None
    image_tokens: int | None = None
    images: int | None = None  # that were made
    audio_seconds: float | None = None  # of sound that was listened to
    characters: int | None = None  # that were read aloud
    price_percent: int = 100  # of the price book's; 50 is the batch class
    cost: Money | None
    price_book: str | None
    replica_id: str | None
    replica: str | None


class RequestPage(BaseModel):
    """A part of the list, the newest first; `next` is the `after` of the following part."""

    items: list[RequestView]
    next: str | None


@router.get("/requests")
@allows(Permission.USAGE_READ)
def list_requests(
    query: Annotated[RequestQuery, Query()], access: Access, context: Context
) -> RequestPage:
    """List settled requests, the newest first: the rows behind the sums of `/usage`"""
    filters = filters_of(query, access)
    if query.outcome is not None:
        filters["outcome"] = query.outcome.value
    if query.replica is not None:
        filters["replica_id"] = query.replica
    found = context.database.settled.read(
        filters,
        since=None if query.since is None else wall_s_of(query.since),
        until=None if query.until is None else wall_s_of(query.until),
        before=_place(query.after),
        limit=query.limit + 1,
    )
    names = _names(context)
    shown = found[: query.limit]
    more = len(found) > len(shown)
    return RequestPage(
        items=[_view(row, names) for row in shown],
        next=f"{shown[-1].settle_time!r} {shown[-1].request_id}" if more else None,
    )


def _place(after: str) -> tuple[float, str] | None:
    """Where a page begins; InvalidRequest for what no page said."""
    if not after:
        return None
    time_text, _, request_id = after.partition(" ")
    try:
        return float(time_text), request_id
    except ValueError:
        raise InvalidRequest("after is what `next` of a page says", param="after") from None


def _names(context: AdminContext) -> dict[str, str]:
    kinds = (Tenant, Project, ApiKey, Replica, PriceBook)
    store = context.database.store
    return {item.id: item.name for kind in kinds for item in store.list(kind)}


def _view(row: SettledRequest, names: dict[str, str]) -> RequestView:
    """A row with the names behind its ids; a deleted thing has only its id."""

    def named(resource_id: str) -> str:
        return names.get(resource_id, resource_id)

    return RequestView(
        id=row.request_id,
        settle_time=moment(row.settle_time),
        tenant_id=row.tenant_id,
        tenant=named(row.tenant_id),
        project=named(row.project_id),
        key_id=row.key_id,
        key=named(row.key_id),
        model=row.model,
        outcome=row.outcome,
        counted_by=row.source,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        reasoning_tokens=row.reasoning_tokens,
        draft_tokens=row.draft_tokens,
        embedding_tokens=row.embedding_tokens,
        image_tokens=row.image_tokens,
        images=row.images,
        audio_seconds=None if row.audio_ms is None else row.audio_ms / 1000,
        characters=row.characters,
        price_percent=100 if row.price_percent is None else row.price_percent,
        cost=None if row.amount_nanousd is None else Money.of(row.amount_nanousd),
        price_book=None if row.price_book_id is None else named(row.price_book_id),
        replica_id=row.replica_id,
        replica=None if row.replica_id is None else named(row.replica_id),
    )
