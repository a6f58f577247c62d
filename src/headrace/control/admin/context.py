"""What every admin route works with, handed to it by FastAPI."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from headrace.base.clock import Clock
from headrace.control.admin.credentials import AdminCredentials
from headrace.control.admin.sign_in import PasswordSignIn
from headrace.control.admin.single_sign_on import SingleSignOn
from headrace.control.insight import Insight
from headrace.control.nodes.node_loop import NodeLoop
from headrace.control.payments.provider import PaymentProvider
from headrace.http.egress import EgressPolicy, no_hosts_allowed
from headrace.launchers.protocol import Launcher
from headrace.storage.database import Database

refusal_interval_s = 60.0
refusals_max = 1000  # callers and actions that are remembered
context_key = "headrace.context"  # in the scope of each request


class RefusalLog:
    """Which refusals were recorded lately, so that repeating one can't fill the audit log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recorded_s: dict[tuple[str, str], float] = {}

    def is_new(self, actor_id: str, action: str) -> bool:
        """Whether this refusal is to be recorded; it counts as recorded from now on."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            last_s = self._recorded_s.get((actor_id, action))
            if last_s is not None and now_s - last_s < refusal_interval_s:
                return False
            if len(self._recorded_s) >= refusals_max:
                del self._recorded_s[next(iter(self._recorded_s))]
            self._recorded_s[actor_id, action] = now_s
        return True


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The store and ledger behind the API, and what is needed to make keys and ids."""

    database: Database
    credentials: AdminCredentials
    pepper: bytes
    clock: Clock
    gateway_url: str | None = None
    single_sign_on: SingleSignOn | None = None
    egress: EgressPolicy = no_hosts_allowed  # where webhooks may lead
    insight: Insight | None = None  # None: nobody follows the gateways
    launcher: Launcher | None = None  # None: replicas are not this process's business
    nodes: NodeLoop | None = None  # None: the launcher's own cluster places replicas
    payment_provider: PaymentProvider | None = None  # None: nobody takes money by it
    closing: asyncio.Event = field(default_factory=asyncio.Event)  # set once this one drains
    passwords: PasswordSignIn = field(init=False)
    refusals: RefusalLog = field(init=False)

    def __post_init__(self) -> None:
        passwords = PasswordSignIn(self.database.store, self.clock)
        object.__setattr__(self, "passwords", passwords)
        object.__setattr__(self, "refusals", RefusalLog(self.clock))


async def admin_context(request: Request) -> AdminContext:
    """The context that this request came with."""
    return context_of(request)


def context_of(request: Request) -> AdminContext:
    """The same, for what FastAPI hands nothing."""
    context = request.scope.get(context_key)
    if not isinstance(context, AdminContext):
        raise TypeError("the application was not made by create_admin_app")
    return context


Context = Annotated[AdminContext, Depends(admin_context)]
