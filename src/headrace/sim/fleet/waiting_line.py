"""Requests that wait for a place in a simulated gateway, in the order of the router's fair queue.

Mirrors `gateway/waiting_room.py`: a queue for each deployment, which is gone once it is empty.
"""

from collections.abc import Callable
from typing import Protocol

from headrace.base.errors import Unavailable
from headrace.router.fair_queue import FairQueue, Ticket, ticket_tokens_max, waiting_requests_max
from headrace.router.lease import Lease
from headrace.router.picker import Saturated
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.request import Outcome, SimRequest
from headrace.spec.priority import Priority

wait_s_max = {Priority.INTERACTIVE: 30.0, Priority.STANDARD: 120.0, Priority.BATCH: 900.0}
pump_interval_s = 0.05


class Desk(Protocol):
    """The gateway, where who is next is served."""

    def lease(self, request: SimRequest, *, is_overdue: bool = False) -> Lease:
        """An endpoint for it; Saturated if all are full, Unavailable if there is none."""
        ...

    def send(self, request: SimRequest, lease: Lease) -> None:
        """It goes there."""
        ...


class WaitingLine:
    """The queues of all deployments."""

    def __init__(
        self, loop: Loop, desk: Desk, on_unserved: Callable[[SimRequest, Outcome], None]
    ) -> None:
        self._loop = loop
        self._desk = desk
        self._on_unserved = on_unserved
        self.queues: dict[int, FairQueue[SimRequest]] = {}  # by deployment; none is empty
        self._tickets: dict[int, Ticket[SimRequest]] = {}
        self.turns: dict[int, int] = {}  # tokens that requests were charged for their turn
        self._pumps_pending = False
        self.waited_total = 0

    def length(self, deployment: int) -> tuple[int, int]:
        """Requests and tokens that wait for a place at a deployment's replicas."""
        queue = self.queues.get(deployment)
        return (0, 0) if queue is None else (len(queue), queue.waiting_tokens)

    def wait(self, request: SimRequest) -> None:
        """Every endpoint is full: take a place in the fair queue."""
        self.waited_total += 1
        queue = self.queues.setdefault(request.deployment, FairQueue(waiting_requests_max))
        tokens = min(ticket_tokens_max, request.prompt_tokens + request.max_tokens)
        ticket = Ticket(str(request.tenant), request.priority, tokens, request)
        displaced = queue.push(ticket)
        if displaced is not ticket:
            self._tickets[request.id] = ticket
            self._loop.after(wait_s_max[request.priority], self._give_up, request)
        if displaced is not None:
            self._tickets.pop(displaced.item.id, None)
            self._on_unserved(displaced.item, Outcome.REFUSED)
        if not self._pumps_pending:
            self._pumps_pending = True
            self._loop.after(pump_interval_s, self._pump_all, None)

    def ended(self, request: SimRequest) -> None:
        """A request that had its turn gives back what it was charged and did not use."""
        turn_tokens = self.turns.pop(request.id, 0)
        queue = self.queues.get(request.deployment)
        if turn_tokens and queue is not None:
            unused_tokens = turn_tokens - request.prompt_tokens - request.produced_tokens
            queue.give_back(str(request.tenant), request.priority, unused_tokens)

    def _give_up(self, request: SimRequest) -> None:
        ticket = self._tickets.pop(request.id, None)
        if ticket is not None:
            self.queues[request.deployment].discard(ticket)
            self._on_unserved(request, Outcome.REFUSED)

    def _pump_all(self, _: None) -> None:
        for deployment in tuple(self.queues):
            self.pump(deployment)
        self._pumps_pending = bool(self.queues)
        if self._pumps_pending:
            self._loop.after(pump_interval_s, self._pump_all, None)

    def pump(self, deployment: int) -> None:
        """Start waiting requests in their order as long as there is room."""
        queue = self.queues.get(deployment)
        if queue is None:
            return
        while (ticket := queue.next()) is not None:
            request = ticket.item
            try:
                lease = self._desk.lease(request, is_overdue=queue.is_overdue(ticket))
            except Saturated:
                return
            except Unavailable:
                queue.discard(ticket)
                self._tickets.pop(request.id, None)
                self._on_unserved(request, Outcome.FAILED)
                continue
            queue.start(ticket)
            self.turns[request.id] = ticket.tokens
            self._tickets.pop(request.id, None)
            self._desk.send(request, lease)
        self.queues.pop(deployment, None)
