"""Routes for what the console shows first: traffic of the last minutes, and how near limits are."""

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from headrace.base.errors import Unavailable
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.explain import insight_of
from headrace.control.admin.limit_values import LimitsView, limits_view
from headrace.control.admin.values import Money, moment
from headrace.control.alerts import period_start_s
from headrace.control.live_history import objective_first_token_s, success_age_s_max
from headrace.spec.limits import Limits
from headrace.spec.roles import Permission
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant
from headrace.storage.usage import UsageRow

router = APIRouter()

ScopeKind = Literal["tenant", "project", "key"]


class PointView(BaseModel):
    """Traffic around a moment; null where nothing was answered."""

    time_s: float
    requests_per_s: float
    tokens_per_s: float
    completion_tokens_per_s: float
    failures_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    good_share: float | None
    running: int
    waiting: int


class LoadView(BaseModel):
    """What is under way for one deployment, over all gateways."""

    deployment_id: str
    running: int
    queued_tokens: int
    kv_share: float


class LiveView(BaseModel):
    """The last minutes, the oldest first, and what is under way."""

    status: Literal["serving", "quiet"]  # serving: somebody got an answer within a minute
    last_success_age_s: float | None
    objective_first_token_s: float
    points: list[PointView]
    loads: list[LoadView]


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


class LimitViews(BaseModel):
    """Everything that has limits."""

    items: list[LimitView]


@router.get("/live")
def show_live(context: Context) -> LiveView:
    """Show the traffic of the last minutes: rates, first tokens, and what runs and waits."""
    live = insight_of(context).live
    if live is None:
        raise Unavailable("this control plane keeps no history of traffic")
    age_s = live.success_age_s()
    return LiveView(
        status="serving" if age_s is not None and age_s <= success_age_s_max else "quiet",
        last_success_age_s=age_s,
        objective_first_token_s=objective_first_token_s,
        points=[
            PointView(
                time_s=point.time_s,
                requests_per_s=point.requests_per_s,
                tokens_per_s=point.tokens_per_s,
                completion_tokens_per_s=point.completion_tokens_per_s,
                failures_per_s=point.failures_per_s,
                first_token_p50_s=point.first_token_p50_s,
                first_token_p99_s=point.first_token_p99_s,
                good_share=point.good_share,
                running=point.running,
                waiting=point.waiting,
            )
            for point in live.points()
        ],
        loads=[
            LoadView(
                deployment_id=deployment_id,
                running=load.in_flight_requests,
                queued_tokens=load.queued_tokens,
                kv_share=load.kv_share,
            )
            for deployment_id, load in live.loads().items()
        ],
    )


@router.get("/limits")
@allows(Permission.USAGE_READ)
def list_limits(
    access: Access,
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
) -> LimitViews:
    """List what has limits, with how much of each budget and token quota is used."""
    one = access.one_tenant(tenant) if tenant is not None else None
    tenants = access.visible.list(Tenant) if one is None else [one]
    names = {item.id: item.name for item in tenants}
    projects = [item for item in access.visible.list(Project) if item.parent_id in names]
    owners = {item.id: item.parent_id for item in projects}
    uses = Uses(context)
    found = [uses.view("tenant", item, item.id, names, item.limits) for item in tenants]
    found += [uses.view("project", p, p.parent_id, names, p.limits) for p in projects]
    found += [
        uses.view("key", key, owners[key.parent_id], names, key.limits)
        for key in visible_keys(access)
        if key.parent_id in owners and key.state is KeyState.ACTIVE
    ]
    return LimitViews(items=[view for view in found if view is not None])


def visible_keys(access: GrantedAccess) -> list[ApiKey]:
    """The keys that a caller may read about; who sees usage alone sees none."""
    return [
        key
        for key in access.visible.list(ApiKey)
        if access.actor.may(Permission.KEY_READ, access.tenant_id_of(key))
    ]


class Uses:
    """What was used in a period by each tenant, project or key; each question is asked once."""

    def __init__(self, context: AdminContext) -> None:
        self._ledger = context.database.ledger
        self._now_s = context.clock.wall_s()
        self._answers: dict[tuple[ScopeKind, float], Mapping[str, UsageRow]] = {}

    def view(
        self,
        kind: ScopeKind,
        item: Tenant | Project | ApiKey,
        tenant_id: str,
        names: Mapping[str, str],
        limits: Limits | None,
    ) -> LimitView | None:
        """The limits of one thing, None if it has none."""
        shown = limits_view(limits)
        if limits is None or shown is None:
            return None
        budget_start_s = period_start_s(limits.budget_period, self._now_s)
        tokens_start_s = period_start_s(limits.period, self._now_s)
        has_budget = limits.budget_nanousd is not None
        has_quota = limits.tokens_per_period is not None
        return LimitView(
            kind=kind,
            id=item.id,
            name=item.name,
            tenant=names.get(tenant_id, ""),
            limits=shown,
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
