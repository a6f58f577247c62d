"""Whatever comes, goes and leaves: nobody starves, and a flood costs the others next to nothing."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.router.fair_queue import FairQueue, Ticket, passed_over_max, quantum_tokens
from headrace.spec.priority import Priority

tenants = ["a", "b", "c"]
requests_max = 12
tokens_max = 3 * quantum_tokens


class FairQueueMachine(RuleBasedStateMachine):
    """Random arrivals, starts and departures, beside a plain list of who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(requests_max)
        self.waiting: list[Ticket[int]] = []
        self.passed_over: Counter[Priority] = Counter()
        self.number = 0

    @rule(
        tenant_id=st.sampled_from(tenants),
        priority=st.sampled_from(Priority),
        tokens=st.integers(0, tokens_max),
    )
    def request_arrives(self, tenant_id: str, priority: Priority, tokens: int) -> None:
        ticket = Ticket(tenant_id, priority, tokens, self.number)
        self.number += 1
        if not any(other.priority is priority for other in self.waiting):
            self.passed_over[priority] = 0
        was_full = len(self.waiting) == requests_max
        displaced = self.queue.push(ticket)
        assert (displaced is not None) == was_full
        self.waiting.append(ticket)
        if displaced is not None:
            self.waiting.remove(displaced)
            assert displaced.priority >= ticket.priority  # no higher class makes room for a lower
            lane = [t for t in self.waiting if self.lane(t) == self.lane(displaced)]
            assert all(t.item < displaced.item for t in lane)  # the youngest of its lane

    @precondition(lambda self: self.waiting)
    @rule()
    def place_becomes_free(self) -> None:
        ticket = self.queue.next()
        assert ticket is not None
        assert ticket in self.waiting
        lane = [t for t in self.waiting if self.lane(t) == self.lane(ticket)]
        assert ticket is lane[0]  # the oldest of its tenant and class
        higher = [t for t in self.waiting if t.priority < ticket.priority]
        assert not higher or self.passed_over[ticket.priority] >= passed_over_max
        self.queue.start(ticket)
        self.waiting.remove(ticket)
        self.passed_over[ticket.priority] = 0
        for priority in Priority:
            if priority > ticket.priority and any(t.priority is priority for t in self.waiting):
                self.passed_over[priority] += 1
                assert self.passed_over[priority] <= passed_over_max + len(Priority)

    @rule(
        tenant_id=st.sampled_from(tenants),
        priority=st.sampled_from(Priority),
        tokens=st.integers(-tokens_max, tokens_max),
    )
    def request_ends(self, tenant_id: str, priority: Priority, tokens: int) -> None:
        self.queue.give_back(tenant_id, priority, tokens)

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, requests_max))
    def client_leaves(self, index: int) -> None:
        ticket = self.waiting.pop(index % len(self.waiting))
        self.queue.discard(ticket)
        self.queue.discard(ticket)

    @staticmethod
    def lane(ticket: Ticket[int]) -> tuple[str, Priority]:
        return ticket.tenant_id, ticket.priority

    @invariant()
    def counts_are_those_of_who_waits(self) -> None:
        assert len(self.queue) == len(self.waiting) <= requests_max
        assert self.queue.waiting_tokens == sum(ticket.tokens for ticket in self.waiting)

    def teardown(self) -> None:
        """Everybody who waits is started in the end."""
        while self.waiting:
            self.place_becomes_free()
        assert self.queue.next() is None


TestFairQueueMachine = FairQueueMachine.TestCase
TestFairQueueMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


@settings(max_examples=20, deadline=None)
@given(
    flood_tokens=st.integers(500, 8000),
    others=st.lists(st.integers(500, 4000), min_size=1, max_size=6),
    burst=st.integers(1, 5),
)
def test_a_flooding_tenant_leaves_the_others_their_fair_share(
    flood_tokens: int, others: list[int], burst: int
) -> None:
    """Everybody always wants more; the flooder sends `burst` requests for each start."""
    queue: FairQueue[None] = FairQueue(64)
    sizes = {f"t{number}": tokens for number, tokens in enumerate(others)}
    waiting: Counter[str] = Counter()
    got: Counter[str] = Counter()

    def arrive(tenant_id: str, tokens: int) -> None:
        displaced = queue.push(Ticket(tenant_id, Priority.STANDARD, tokens, None))
        waiting[tenant_id] += 1
        if displaced is not None:
            waiting[displaced.tenant_id] -= 1
            assert displaced.tenant_id == "flooder"

    total_tokens = 0
    while total_tokens < 120 * quantum_tokens * (len(others) + 1):
        for _ in range(burst):
            arrive("flooder", flood_tokens)
        for tenant_id, tokens in sizes.items():
            while waiting[tenant_id] < 4:
                arrive(tenant_id, tokens)
        ticket = queue.next()
        assert ticket is not None
        queue.start(ticket)
        waiting[ticket.tenant_id] -= 1
        got[ticket.tenant_id] += ticket.tokens
        total_tokens += ticket.tokens
    fair_tokens = total_tokens / (len(others) + 1)
    assert all(got[tenant_id] >= 0.95 * fair_tokens for tenant_id in sizes)
