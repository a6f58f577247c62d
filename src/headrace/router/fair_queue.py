"""Who is next when every endpoint of a model is full: by class, then fair by tenant, then by age.

Class: the highest that waits goes first, but one that was passed over `passed_over_max` times in a
row goes next, so that none starves. Within a class, deficit round robin over tenants (Shreedhar
and Varghese 1995), in tokens: at its turn a tenant gains `quantum_tokens` and starts requests as
long as what it gained covers them. A tenant that floods waits behind its own requests only. What a
request costs is known once it ended: until then it is charged what it declares, which is more, and
then its tenant gets the difference back (as VTC charges, Sheng et al., OSDI 2024).

The queue is bounded. A newcomer that finds it full displaces the youngest request of a lower class,
else of the tenant that waits with most requests, unless that is its own; else it is refused.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.spec.priority import Priority

Item = TypeVar("Item")

quantum_tokens = 1024  # half a usual request's work; a smaller one only costs more turns
passed_over_max = 16  # a lower class gets at least a seventeenth of the starts
ticket_tokens_max = 1_000_000  # beyond any context; bounds the turns that one request can take
waiting_requests_max = 2048  # of one model


@dataclass(eq=False, slots=True)
class Ticket(Generic[Item]):
    """One waiting request."""

    tenant_id: str
    priority: Priority
    tokens: int  # what it will cost, at most `ticket_tokens_max`
    item: Item


class Lane(Generic[Item]):
    """One tenant's requests of one class, the oldest first."""

    __slots__ = ("deficit_tokens", "has_turn", "tickets")

    def __init__(self) -> None:
        self.tickets: dict[Ticket[Item], None] = {}  # in order; a dict forgets any one at once
        self.deficit_tokens = 0
        self.has_turn = False

    @property
    def head(self) -> Ticket[Item]:
        """The oldest request."""
        return next(iter(self.tickets))


class PriorityClass(Generic[Item]):
    """The lanes of one class, in a ring whose first has the turn."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane[Item]] = {}  # by tenant; only those that wait
        self._ring: deque[str] = deque()
        self.passed_over = 0  # starts of higher classes since this one waits

    def push(self, ticket: Ticket[Item]) -> None:
        """Put a request behind the others of its tenant."""
        if not self.lanes:
            self.passed_over = 0
        lane = self.lanes.get(ticket.tenant_id)
        if lane is None:
            lane = self.lanes[ticket.tenant_id] = Lane()
            self._ring.append(ticket.tenant_id)
        lane.tickets[ticket] = None

    def discard(self, ticket: Ticket[Item]) -> bool:
        """Forget a request; False if it was not here. An empty lane loses what it gained."""
        lane = self.lanes.get(ticket.tenant_id)
        if lane is None or ticket not in lane.tickets:
            return False
        del lane.tickets[ticket]
        if not lane.tickets:
            del self.lanes[ticket.tenant_id]
            self._ring.remove(ticket.tenant_id)
        return True

    def next(self) -> Ticket[Item]:
        """The request whose turn it is; the same one until something is started or forgotten."""
        while True:
            for _ in range(len(self._ring)):
                lane = self.lanes[self._ring[0]]
                if not lane.has_turn:
                    lane.has_turn = True
                    lane.deficit_tokens += quantum_tokens
                if lane.head.tokens <= lane.deficit_tokens:
                    return lane.head
                lane.has_turn = False
                self._ring.rotate(-1)
            self._skip_idle_rounds()

    def _skip_idle_rounds(self) -> None:
        """Give all lanes at once what the rounds would, in which nobody could start."""
        lanes = self.lanes.values()
        missing_tokens = min(lane.head.tokens - lane.deficit_tokens for lane in lanes)
        gained_tokens = (missing_tokens - 1) // quantum_tokens * quantum_tokens
        for lane in lanes:
            lane.deficit_tokens += gained_tokens

    def start(self, ticket: Ticket[Item]) -> None:
        """The request that `next` named goes; its lane pays."""
        self.lanes[ticket.tenant_id].deficit_tokens -= ticket.tokens
        self.discard(ticket)
        self.passed_over = 0

    def give_back(self, tenant_id: str, tokens: int) -> None:
        """A request of the tenant cost so much less than it was charged, or more: it is negative.

        Only who waits has an account: as in every deficit round robin, who leaves starts anew."""
        lane = self.lanes.get(tenant_id)
        if lane is not None:
            lane.deficit_tokens += tokens

    def longest(self) -> Lane[Item]:
        """The lane of the tenant with most requests here."""
        return max(self.lanes.values(), key=lambda lane: len(lane.tickets))


class FairQueue(Generic[Item]):
    """The waiting requests of one model."""

    def __init__(self, requests_max: int = waiting_requests_max) -> None:
        assert requests_max > 0
        self._requests_max = requests_max
        self._classes: dict[Priority, PriorityClass[Item]] = {
            priority: PriorityClass() for priority in Priority
        }
        self._length = 0
        self.waiting_tokens = 0

    def __len__(self) -> int:
        return self._length

    def push(self, ticket: Ticket[Item]) -> Ticket[Item] | None:
        """Let a request wait; the one that must go for it, which may be itself, or None."""
        assert 0 <= ticket.tokens <= ticket_tokens_max
        displaced = None
        if self._length >= self._requests_max:
            displaced = self._displaced_by(ticket)
            if displaced is ticket:
                return ticket
            self.discard(displaced)
        self._classes[ticket.priority].push(ticket)
        self._count(1, ticket.tokens)
        return displaced

    def next(self) -> Ticket[Item] | None:
        """Whose turn it is, without starting it; None if nobody waits."""
        priority = self._next_class()
        return None if priority is None else self._classes[priority].next()

    def is_overdue(self, ticket: Ticket[Item]) -> bool:
        """Whether its class was passed over so often that it goes before higher ones."""
        return self._classes[ticket.priority].passed_over >= passed_over_max

    def start(self, ticket: Ticket[Item]) -> None:
        """Take out the request that `next` named."""
        self._classes[ticket.priority].start(ticket)
        self._count(-1, -ticket.tokens)
        for priority in Priority:
            if priority > ticket.priority and self._classes[priority].lanes:
                self._classes[priority].passed_over += 1

    def give_back(self, tenant_id: str, priority: Priority, tokens: int) -> None:
        """A request that was started here ended, and cost so much less than its ticket said."""
        self._classes[priority].give_back(tenant_id, tokens)

    def discard(self, ticket: Ticket[Item]) -> None:
        """Forget a request that waits no more; nothing if it does not wait."""
        if self._classes[ticket.priority].discard(ticket):
            self._count(-1, -ticket.tokens)

    def _count(self, requests: int, tokens: int) -> None:
        self._length += requests
        self.waiting_tokens += tokens
        assert self._length >= 0
        assert self.waiting_tokens >= 0

    def _next_class(self) -> Priority | None:
        waiting = [priority for priority in Priority if self._classes[priority].lanes]
        for priority in waiting:
            if self._classes[priority].passed_over >= passed_over_max:
                return priority
        return waiting[0] if waiting else None

    def _displaced_by(self, ticket: Ticket[Item]) -> Ticket[Item]:
        lowest = max(priority for priority in Priority if self._classes[priority].lanes)
        if lowest < ticket.priority:
            return ticket
        longest = self._classes[lowest].longest()
        own = self._classes[ticket.priority].lanes.get(ticket.tenant_id)
        if lowest == ticket.priority and len(longest.tickets) <= 1 + (
            len(own.tickets) if own else 0
        ):
            return ticket
        return next(reversed(longest.tickets))
