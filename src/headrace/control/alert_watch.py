"""Looks at limits and what was used, and keeps an event for each alert that is new.

It looks again and again instead of being told of each settlement: nothing is missed by a restart,
a gateway has nothing to do for it, and the ledger is what it says. Each look is a handful of sums.
"""

from collections.abc import Mapping

from headrace.base.clock import Clock
from headrace.base.ids import new_id
from headrace.control.alerts import (
    DueAlert,
    LimitedScope,
    PeriodUse,
    Use,
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
        self._looked_at: tuple[object, ...] = ()

    def look(self) -> int:
        """Keep the events that are due and new; how many those were.

        Without a change of the store or of the ledger since the last look, no use is summed. What
        changes the ledger is any booking: also of a journal that comes a day late, of requests
        that were rated late, of a debit that no request made."""
        now_s = self._clock.wall_s()
        revision = self._database.store.revision()
        state = (revision, now_s // day_s, self._database.ledger.position())
        if state == self._looked_at:
            return 0
        count = self._keep_due(self._limited_scopes(revision), now_s)
        self._looked_at = state
        return count

    def _limited_scopes(self, revision: int) -> list[LimitedScope]:
        """Everything that has limits, read once a revision."""
        if revision != self._scopes_revision:
            self._scopes = limited_scopes(self._database)
            self._scopes_revision = revision
        return self._scopes

    def _keep_due(self, scopes: list[LimitedScope], now_s: float) -> int:
        uses = {question: self._uses(question) for question in questions(scopes, now_s)}
        due = due_alerts(scopes, uses, now_s)
        prepaid = [
            tenant
            for tenant in self._database.store.list(Tenant)
            if tenant.credit_floor_nanousd is not None
        ]
        if prepaid:
            last_day = self._uses(PeriodUse("tenant", now_s - now_s % 60 - day_s))
            balances = self._database.ledger.balances()
            due += low_credits(prepaid, balances, last_day, now_s)
        if not due:
            return 0
        known = self._database.events.known_occasions([alert.occasion for alert in due])
        return sum(self._keep(alert) for alert in due if alert.occasion not in known)

    def _uses(self, question: PeriodUse) -> Mapping[str, Use]:
        """What each scope of a kind used since a moment."""
        rows = self._database.ledger.usage(groups[question.scope_kind], since=question.start_s)
        return {
            ":".join(
                part
                for part in (row.tenant_id, row.project_id, row.key_id, row.model)
                if part is not None
            ): Use(row.prompt_tokens + row.completion_tokens, row.amount_nanousd)
            for row in rows
        }

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


def limited_scopes(database: Database) -> list[LimitedScope]:
    """Everything that has limits."""
    store = database.store
    tenants = store.list(Tenant)
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
