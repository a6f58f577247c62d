"""Looks at limits and what was used, and keeps an event for each alert that is new.

It looks again and again instead of being told of each settlement: nothing is missed by a restart,
a gateway has nothing to do for it, and the ledger is what it says. Each look is a handful of sums,
which take at most a share of the time however many tenants there are.
"""

from collections.abc import Collection, Mapping, Sequence

from headrace.base.clock import Clock
from headrace.base.ids import new_id
from headrace.control.alerts import (
    DueAlert,
    LimitedScope,
    PeriodUse,
    Use,
    credit_occasion,
    day_s,
    due_alerts,
    low_credits,
    questions,
)
from headrace.spec.events import Event, EventType, Webhook
from headrace.spec.models import Model
from headrace.spec.tenancy import ApiKey, Project, Tenant
from headrace.storage.database import Database

pending_max = 1000  # deliveries that wait for one webhook; more are not queued for it
time_share_max = 0.05  # of one thread; what takes longer is done less often
groups = {
    "tenant": ("tenant",),
    "project": ("project",),
    "key": ("key",),
    "model": ("model",),
    "key_model": ("key", "model"),
}


class AlertWatch:
    """Turns limits and the ledger's sums into events, each kept once."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._scopes_revision = -1
        self._scopes: list[LimitedScope] = []
        self._prepaid: list[Tenant] = []
        self._next_look_s = 0.0
        self._looked_at: tuple[object, ...] = ()

    def look(self) -> int:
        """Keep the events that are due and new; how many those were.

        Without a change of the store or of the ledger since the last look, no use is summed. What
        changes the ledger is any booking: also of a journal that comes a day late, of requests
        that were rated late, of a debit that no request made."""
        now_s = self._clock.wall_s()
        revision = self._database.store.revision()
        state = (revision, now_s // day_s, self._database.ledger.position())
        begin_s = self._clock.monotonic_s()
        if state == self._looked_at or begin_s < self._next_look_s:
            return 0
        self._read_tenants(revision)
        due = self._due_of_limits(now_s) + self._due_of_credit(now_s)
        known = self._database.events.known_occasions([alert.occasion for alert in due])
        count = sum(self._keep(alert) for alert in due if alert.occasion not in known)
        self._looked_at = state
        end_s = self._clock.monotonic_s()
        self._next_look_s = end_s + (end_s - begin_s) * (1.0 / time_share_max - 1.0)
        return count

    def _read_tenants(self, revision: int) -> None:
        """Everything that has limits, and who pays in advance; read once a revision."""
        if revision == self._scopes_revision:
            return
        tenants = self._database.store.list(Tenant)
        self._scopes = limited_scopes(self._database, tenants)
        self._prepaid = [each for each in tenants if each.credit_floor_nanousd is not None]
        self._scopes_revision = revision

    def _due_of_limits(self, now_s: float) -> list[DueAlert]:
        scopes = self._scopes
        ids: dict[str, set[str]] = {}
        for scope in scopes:
            ids.setdefault(scope.kind, set()).add(scope.first_id)
        uses = {
            question: self._uses(question, ids[question.scope_kind])
            for question in questions(scopes, now_s)
        }
        return due_alerts(scopes, uses, now_s)

    def _due_of_credit(self, now_s: float) -> list[DueAlert]:
        """Who runs low. Sums of days say who may, before requests are summed for those alone."""
        if not self._prepaid:
            return []
        balances = self._database.ledger.balances()
        two_days = self._uses(
            PeriodUse("tenant", now_s - now_s % day_s - day_s), {each.id for each in self._prepaid}
        )
        found = low_credits(self._prepaid, balances, two_days, now_s)
        if not found:
            return []
        occasions = {alert.occasion for alert in found}
        occasions -= self._database.events.known_occasions(sorted(occasions))
        maybe = [each for each in self._prepaid if credit_occasion(each, now_s) in occasions]
        if not maybe:
            return []
        last_day = PeriodUse("tenant", now_s - now_s % 60 - day_s)
        return low_credits(
            maybe, balances, self._uses(last_day, {each.id for each in maybe}), now_s
        )

    def _uses(self, question: PeriodUse, ids: Collection[str]) -> Mapping[str, Use]:
        """What scopes of a kind used since a moment: these at least, by their first id."""
        rows = self._database.ledger.uses(groups[question.scope_kind], question.start_s, ids)
        return {":".join(row.ids): Use(row.tokens, row.amount_nanousd) for row in rows}

    def _keep(self, alert: DueAlert) -> bool:
        event = Event(
            id=new_id("evt", self._clock),
            type=alert.type,
            tenant_id=alert.tenant_id,
            occasion=alert.occasion,
            create_time=self._clock.wall_s(),
            data=alert.data,
        )
        return self._database.events.add(event, subscribers(self._database, event))


def subscribers(database: Database, event: Event) -> list[str]:
    """The webhooks that are to hear of an event: the tenant's own, and the platform's."""
    return [
        webhook.id
        for webhook in database.store.list(Webhook)
        if webhook.active
        and webhook.parent_id in ("", event.tenant_id)
        and (event.type in webhook.events or event.type is EventType.TEST)
        and database.events.pending_count(webhook.id) < pending_max
    ]


def limited_scopes(database: Database, tenants: Sequence[Tenant]) -> list[LimitedScope]:
    """Everything that has limits, of these tenants too."""
    store = database.store
    projects = store.list(Project)
    tenant_of_project = {project.id: project.parent_id for project in projects}
    scopes = [
        LimitedScope("tenant", tenant.id, tenant.name, tenant.id, tenant.limits)
        for tenant in tenants
        if tenant.limits is not None
    ]
    scopes += [
        LimitedScope("project", project.id, project.name, project.parent_id, project.limits)
        for project in projects
        if project.limits is not None
    ]
    scopes += [
        LimitedScope("model", model.name, model.name, "", model.limits)
        for model in store.list(Model)
        if model.limits is not None
    ]
    for key in store.list(ApiKey):
        tenant_id = tenant_of_project.get(key.parent_id, "")
        if key.limits is not None:
            scopes.append(LimitedScope("key", key.id, key.name, tenant_id, key.limits))
        for model, limits in (key.model_limits or {}).items():
            name = f"{key.name} with {model}"
            scopes.append(LimitedScope("key_model", f"{key.id}:{model}", name, tenant_id, limits))
    return scopes
