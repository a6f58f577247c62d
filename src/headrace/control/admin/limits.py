"""The route that says how near limits are: of tenants, projects and keys, in pages."""

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from headrace.base.errors import InvalidRequest
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.limit_values import LimitsView, view_of
from headrace.control.admin.pages import After, Limit, Page, page_items_default
from headrace.control.admin.values import Money, moment
from headrace.control.alerts import period_start_s
from headrace.spec.roles import Permission
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant
from headrace.storage.usage import UsageRow

router = APIRouter()

ScopeKind = Literal["tenant", "project", "key"]
Limited = Tenant | Project | ApiKey


class LimitView(BaseModel):
    """Limits of a tenant, project or key, with what is used of its budget and its tokens."""

    kind: ScopeKind
    id: str
    name: str
    tenant: str
    limits: LimitsView
    budget_used: Money | None
    budget_start_time: datetime.datetime | None
    tokens_used: int | None
    tokens_start_time: datetime.datetime | None


@router.get("/limits")
@allows(Permission.USAGE_READ)
def list_limits(
    access: Access,
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    after: After = "",
    limit: Limit = page_items_default,
) -> Page[LimitView]:
    """List what has limits, with how much of each budget and token quota is used: tenants, then
    projects, then active keys."""
    one = access.one_tenant(tenant) if tenant is not None else None
    tenants = access.visible.list(Tenant) if one is None else [one]
    names = {item.id: item.name for item in tenants}
    projects = [item for item in access.visible.list(Project) if item.parent_id in names]
    owners = {item.id: item.parent_id for item in projects}
    keys = [
        key
        for key in visible_keys(access)
        if key.parent_id in owners and key.state is KeyState.ACTIVE
    ]
    having: tuple[Limited, ...] = (*tenants, *projects, *keys)
    limited = [item for item in having if item.limits is not None]
    start = place_in_list(after)
    rest = [item for item in limited if place_in_list(item.id) > start]
    uses = Uses(context)
    views = [uses.view(item, names[tenant_id_of(item, owners)]) for item in rest[:limit]]
    return Page(items=views, next=rest[limit - 1].id if len(rest) > limit else None)


def place_in_list(resource_id: str) -> tuple[int, str]:
    """Where something with limits stands in their list, by its id alone: it may be gone by now."""
    kinds = (Tenant.id_prefix, Project.id_prefix, ApiKey.id_prefix)
    prefix = resource_id.partition("_")[0]
    if resource_id and prefix not in kinds:
        raise InvalidRequest("give the `next` of the page before, or nothing", param="after")
    return (kinds.index(prefix) if resource_id else -1, resource_id)


def visible_keys(access: GrantedAccess) -> list[ApiKey]:
    """The keys that a caller may read about; who sees usage alone sees none."""
    return [
        key
        for key in access.visible.list(ApiKey)
        if access.actor.may(Permission.KEY_READ, access.tenant_id_of(key))
    ]


def kind_of(item: Limited) -> ScopeKind:
    """What sort of thing has the limits."""
    match item:
        case Tenant():
            return "tenant"
        case Project():
            return "project"
        case ApiKey():
            return "key"


def tenant_id_of(item: Limited, owners: Mapping[str, str]) -> str:
    """Whose it is, by the tenants of the projects."""
    match item:
        case Tenant():
            return item.id
        case Project():
            return item.parent_id
        case ApiKey():
            return owners[item.parent_id]


class Uses:
    """What was used in a period by each tenant, project or key; each question is asked once."""

    def __init__(self, context: AdminContext) -> None:
        self._ledger = context.database.ledger
        self._now_s = context.clock.wall_s()
        self._answers: dict[tuple[ScopeKind, float], Mapping[str, UsageRow]] = {}

    def view(self, item: Limited, tenant: str) -> LimitView:
        """The limits of one thing that has some, of the tenant of that name."""
        limits, kind = item.limits, kind_of(item)
        assert limits is not None, "asked only of what has limits"
        budget_start_s = period_start_s(limits.budget_period, self._now_s)
        tokens_start_s = period_start_s(limits.period, self._now_s)
        has_budget = limits.budget_nanousd is not None
        has_quota = limits.tokens_per_period is not None
        return LimitView(
            kind=kind,
            id=item.id,
            name=item.name,
            tenant=tenant,
            limits=view_of(limits),
            budget_used=(
                Money.of(self._cost(kind, item.id, budget_start_s)) if has_budget else None
            ),
            budget_start_time=moment(budget_start_s) if has_budget else None,
            tokens_used=self._tokens(kind, item.id, tokens_start_s) if has_quota else None,
            tokens_start_time=moment(tokens_start_s) if has_quota else None,
        )

    def _cost(self, kind: ScopeKind, scope_id: str, start_s: float) -> int:
        row = self._rows(kind, start_s).get(scope_id)
        return 0 if row is None else row.amount_nanousd

    def _tokens(self, kind: ScopeKind, scope_id: str, start_s: float) -> int:
        row = self._rows(kind, start_s).get(scope_id)
        return 0 if row is None else row.prompt_tokens + row.completion_tokens

    def _rows(self, kind: ScopeKind, start_s: float) -> Mapping[str, UsageRow]:
        asked = (kind, start_s)
        if asked not in self._answers:
            rows = self._ledger.usage((kind,), since=start_s)
            ids = {"tenant": "tenant_id", "project": "project_id", "key": "key_id"}
            self._answers[asked] = {str(getattr(row, ids[kind])): row for row in rows}
        return self._answers[asked]
