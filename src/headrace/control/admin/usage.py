"""Routes for what was used: sums of the ledger by tenant, project, key, model and day."""

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.values import (
    Moment,
    Money,
    optional_moment,
    wall_s_of,
)
from headrace.spec.roles import Permission
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage.usage import UsageRow

router = APIRouter()

usage_groups = ("tenant", "project", "key", "model", "day")
usage_rows_max = 10_000  # a year of days for 27 models; narrower questions for more


class UsageItem(BaseModel):
    """Sums over one group; what was not grouped by is null."""

    tenant_id: str | None
    tenant: str | None
    project_id: str | None
    project: str | None
    key_id: str | None
    key: str | None
    model: str | None
    day: str | None  # UTC
    requests: int
    finished: int
    aborted: int
    failed: int
    unrated: int  # of the requests; their cost is not known yet and not in `cost`
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    # Of the requests whose engines count these classes.
    reasoning_tokens: int = 0
    draft_tokens: int = 0
    embedding_tokens: int = 0
    image_tokens: int = 0
    images: int = 0  # that were made
    audio_seconds: float = 0.0  # of sound that was listened to
    characters: int = 0  # that were read aloud
    cost: Money


class Usage(BaseModel):
    """What was used in a span of time, by group, and in all."""

    by: list[str]
    since: datetime.datetime | None
    until: datetime.datetime | None
    items: list[UsageItem]
    total: UsageItem


class UsageQuery(BaseModel):
    """What to sum, and over what."""

    by: Annotated[str, Field(max_length=100, description="tenant,project,key,model,day")] = ""
    since: Moment | None = None
    until: Moment | None = None
    tenant: Annotated[str, Field(max_length=200)] | None = None
    project: Annotated[str, Field(max_length=200)] | None = None
    key: Annotated[str, Field(max_length=200)] | None = None
    model: Annotated[str, Field(max_length=200)] | None = None


@router.get("/usage")
@allows(Permission.USAGE_READ)
def read_usage(query: Annotated[UsageQuery, Query()], access: Access, context: Context) -> Usage:
    """Requests, tokens and cost by group, from the ledger."""
    groups = _groups(query.by)
    since = None if query.since is None else wall_s_of(query.since)
    until = None if query.until is None else wall_s_of(query.until)
    filters = filters_of(query, access)
    ledger = context.database.ledger
    rows = ledger.usage(groups, since, until, filters)
    if len(rows) > usage_rows_max:
        raise InvalidRequest(
            f"the answer has {len(rows):,} rows, more than {usage_rows_max:,}; "
            "ask for a shorter time or for fewer groups",
            param="by",
        )
    views = _UsageViews(context)
    totals = ledger.usage((), since, until, filters) or [_no_usage]
    return Usage(
        by=list(groups),
        since=optional_moment(since),
        until=optional_moment(until),
        items=[views.of(row) for row in rows],
        total=views.of(totals[0]),
    )


_no_usage = UsageRow(
    requests=0,
    finished=0,
    aborted=0,
    failed=0,
    unrated=0,
    prompt_tokens=0,
    cached_tokens=0,
    completion_tokens=0,
    amount_nanousd=0,
)


def _groups(by: str) -> tuple[str, ...]:
    names = [name.strip() for name in by.split(",") if name.strip()]
    unknown = [name for name in names if name not in usage_groups]
    if unknown:
        raise InvalidRequest(
            f"usage has no group {unknown[0]!r}; choose from {', '.join(usage_groups)}", param="by"
        )
    return tuple(dict.fromkeys(names))


def filters_of(query: UsageQuery, access: GrantedAccess) -> dict[str, str]:
    """What the sums are over: as asked, and never more than the caller may see."""
    filters: dict[str, str] = {}
    tenant = access.one_tenant(query.tenant)
    if tenant is not None:
        filters["tenant"] = tenant.id
    if query.project is not None:
        filters["project"] = access.resolve(Project, query.project, Tenant).id
    elif tenant is not None and access.scope_in(tenant.id).projects is not None:
        raise InvalidRequest("you see some of the tenant's projects; name one", param="project")
    if query.key is not None:
        filters["key"] = access.resolve(ApiKey, query.key).id
    if query.model is not None:
        filters["model"] = query.model
    return filters


class _UsageViews:
    """Views of usage with the names behind the ids; a deleted thing has only its id."""

    def __init__(self, context: AdminContext) -> None:
        store = context.database.store
        self._names = {
            item.id: item.name for kind in (Tenant, Project, ApiKey) for item in store.list(kind)
        }

    def of(self, row: UsageRow) -> UsageItem:
        return UsageItem(
            tenant_id=row.tenant_id,
            tenant=self._name(row.tenant_id),
            project_id=row.project_id,
            project=self._name(row.project_id),
            key_id=row.key_id,
            key=self._name(row.key_id),
            model=row.model,
            day=row.day,
            requests=row.requests,
            finished=row.finished,
            aborted=row.aborted,
            failed=row.failed,
            unrated=row.unrated,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
            reasoning_tokens=row.reasoning_tokens,
            draft_tokens=row.draft_tokens,
            embedding_tokens=row.embedding_tokens,
            image_tokens=row.image_tokens,
            images=row.images,
            audio_seconds=row.audio_ms / 1000,
            characters=row.characters,
            cost=Money.of(row.amount_nanousd),
        )

    def _name(self, resource_id: str | None) -> str | None:
        return None if resource_id is None else self._names.get(resource_id, resource_id)
