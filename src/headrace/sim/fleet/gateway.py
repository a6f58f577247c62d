"""A gateway on the virtual clock: the router's own code, with a network of delays around it.

    arrive -> reserve -> lease (or wait) -> send ~ latency ~> engine ~> first token ~> end -> settle
                           ^-- retry, before the first token, within the retry budget --'

The picker, its prefix index, leases, breakers and the retry budget are the real ones. Under the
policy `headrace` endpoints have their learnt limits and the fair queue decides who is next; under
the others nothing is limited here. It mirrors `gateway/exchange.py`, which is the same order of
calls over real connections.
"""

import random
from collections.abc import Callable
from itertools import accumulate

from headrace.base.errors import HeadraceError, RateLimited, Unavailable
from headrace.router.breaker import BreakerState
from headrace.router.endpoint import Endpoint
from headrace.router.fair_queue import FairQueue, Ticket, ticket_tokens_max, waiting_requests_max
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker, Saturated, WeightedPool
from headrace.router.policy import RoutingPolicy
from headrace.router.prompt_prefix import PromptPrefix
from headrace.router.retry_budget import RetryBudget
from headrace.sim.fleet.books import Books
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.invariants import Invariants
from headrace.sim.fleet.replicas import Replica, Replicas
from headrace.sim.fleet.request import Attempt, Outcome, SimRequest
from headrace.sim.fleet.scenario import NetworkSpec
from headrace.sim.fleet.signals import TrafficSignals
from headrace.spec.priority import Priority

attempts_max = 3  # as in the real exchange
poll_interval_s = 0.5  # as the real load follower
wait_s_max = {Priority.INTERACTIVE: 30.0, Priority.STANDARD: 120.0, Priority.BATCH: 900.0}
pump_interval_s = 0.05


class SimGateway:
    """Routes every request of a simulation."""

    def __init__(
        self,
        loop: Loop,
        replicas: Replicas,
        *,
        policy: RoutingPolicy | None,
        rng: random.Random,
        network: NetworkSpec,
        invariants: Invariants,
        books: Books | None,
        on_end: Callable[[SimRequest], None],
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._has_limits = policy is None  # headrace's own
        self._picker = Picker(replicas.endpoints, rng, policy)
        self._rng = rng
        self._network = network
        self._latency_s = network.latency_s
        self._invariants = invariants
        self._books = books
        self._on_end = on_end
        self._retries = RetryBudget(0.0)
        self._queues: dict[int, FairQueue[SimRequest]] = {}
        self._tickets: dict[int, Ticket[SimRequest]] = {}
        self._turns: dict[int, int] = {}  # tokens that requests were charged for their turn
        self._excluded: dict[int, set[str]] = {}  # of requests that were tried
        self.signals: dict[int, TrafficSignals] = {}  # by deployment, of those that are scaled
        self._pumps_pending = False
        self._polls_pending = False
        self._held: dict[int, list[tuple[Callable[[Attempt], None], Attempt]]] = {}  # by a cut
        self._busy: dict[int, None] = {}  # replicas worth asking for their load, nearly full
        self._attempts_open = 0
        self.retries_total = 0
        self.duplicates_refused = 0
        self.waited_total = 0
        self.admitted_total = 0
        replicas.on_broken = self._on_connection_cut

    def arrive(self, request: SimRequest) -> None:
        """A request comes in."""
        self._invariants.arrived()
        if self._books is not None and not self._books.reserve(request):
            self._finish(request, None, Outcome.REFUSED, is_admitted=False)
            return
        self.admitted_total += 1
        if request.deployment in self.signals:
            self.signals[request.deployment].arrived(request)
        self._retries.deposit()
        if self._has_limits and request.deployment in self._queues:
            self._wait(request)
        else:
            self._try(request, None)

    def _try(self, request: SimRequest, failed: Attempt | None) -> None:
        """Lease an endpoint and send; wait if all are full, end if there is none."""
        try:
            lease = self._lease(request)
        except Saturated:
            self._wait(request)
        except Unavailable:
            self._finish(request, failed, Outcome.FAILED)
        else:
            self._send(request, lease)

    def _lease(self, request: SimRequest, *, is_overdue: bool = False) -> Lease:
        excluded = self._excluded.get(request.id, ())
        is_batch = request.priority is Priority.BATCH
        return self._picker.lease(
            self._pools(request.deployment),
            work_of(request),
            self._loop.now_s,
            excluded,
            over_capacity=bool(excluded) or not self._has_limits,
            leaves_spare=is_batch and self._has_limits and not (is_overdue or excluded),
            tries_ejected=True,
        )

    def _pools(self, deployment: int) -> tuple[WeightedPool, ...]:
        """A deployment's only pool."""
        return ((self._replicas.pool_names[deployment], 1),)

    def _has_better(self, request: SimRequest, taken: Endpoint) -> bool:
        """Whether another endpoint that it did not try is not ejected."""
        excluded = self._excluded.get(request.id, ())
        return any(
            endpoint.breaker.state is BreakerState.CLOSED and endpoint.spec.id not in excluded
            for endpoint in self._replicas.endpoints.pool(taken.spec.pool)
            if endpoint is not taken
        )

    def _send(self, request: SimRequest, lease: Lease) -> None:
        request.attempts += 1
        endpoint = lease.endpoint
        is_ejected = endpoint.breaker.state is not BreakerState.CLOSED
        is_last_resort = is_ejected and not self._has_better(request, endpoint)
        self._invariants.sent(endpoint, self._loop.now_s, is_last_resort=is_last_resort)
        replica = self._replicas.replica_of(endpoint)
        attempt = Attempt(request, request.attempts, lease, replica.index, self._loop.now_s)
        if self._has_limits:
            self._attempts_open += 1
            if endpoint.capacity.is_near(endpoint.in_flight_requests):
                self._busy[replica.index] = None
            if not self._polls_pending:
                self._poll_soon()
        network = self._network
        if replica.is_cut or (network.lost_share and self._rng.random() < network.lost_share):
            self._loop.after(network.connect_timeout_s, self._timed_out, attempt)
            return
        self._loop.after(network.latency_s, self._reach_engine, attempt)
        if network.duplicate_share and self._rng.random() < network.duplicate_share:
            self._loop.after(2 * network.latency_s, self._reach_engine_again, attempt)

    def _reach_engine(self, attempt: Attempt) -> None:
        replica = self._replicas.all[attempt.replica]
        latency_s = self._network.latency_s
        if replica.is_cut:
            self._loop.after(self._network.connect_timeout_s, self._timed_out, attempt)
            return
        if not replica.is_up:
            self._loop.after(latency_s, self._refused, attempt)
            return
        if not replica.is_hung:
            try:
                replica.engine.submit(attempt)
            except RateLimited:
                self._loop.after(latency_s, self._turned_away, attempt)
                return
            except HeadraceError:
                self._loop.after(latency_s, self._not_servable, attempt)
                return
        replica.running[attempt] = None
        lease = attempt.lease
        if lease is not None and lease.is_awaited:
            self._loop.after(latency_s, self._accepted, attempt)
        if replica.is_hung:
            self._loop.after(self._network.stall_timeout_s, self._stalled, attempt)

    def _reach_engine_again(self, attempt: Attempt) -> None:
        """The same request a second time: an engine refuses an id that runs."""
        replica = self._replicas.all[attempt.replica]
        if replica.is_up and not replica.is_hung and not replica.is_cut:
            try:
                replica.engine.submit(attempt)
            except HeadraceError:
                self.duplicates_refused += 1

    def hang(self, replica: Replica) -> None:
        """A fault: the engine falls silent; streams in it will stall."""
        self._replicas.hang(replica)
        for attempt in replica.running:
            self._loop.after(self._network.stall_timeout_s, self._stalled, attempt)

    def waiting(self, deployment: int) -> tuple[int, int]:
        """Requests and tokens that wait for a place at a deployment's replicas."""
        queue = self._queues.get(deployment)
        return (0, 0) if queue is None else (len(queue), queue.waiting_tokens)

    def first_token(self, attempt: Attempt) -> None:
        """An engine's event."""
        if self._replicas.all[attempt.replica].is_cut:
            self._hold(self._on_first_output, attempt)
        else:
            self._loop.after(self._latency_s, self._on_first_output, attempt)

    def finished(self, attempt: Attempt) -> None:
        """An engine's event."""
        replica = self._replicas.all[attempt.replica]
        if replica.is_cut:
            self._hold(self._on_complete, attempt)
        else:
            replica.running.pop(attempt, None)
            self._loop.after(self._latency_s, self._on_complete, attempt)

    def cut(self, replica: Replica) -> None:
        """A fault: nothing reaches the replica or comes from it; streams wait, or stall."""
        replica.is_cut = True
        for attempt in replica.running:
            self._loop.after(self._network.stall_timeout_s, self._stalled_by_cut, attempt)

    def heal(self, replica: Replica) -> None:
        """The network is back; what was sent meanwhile is sent again."""
        replica.is_cut = False
        for receive, attempt in self._held.pop(replica.index, ()):
            if receive == self._on_complete:
                replica.running.pop(attempt, None)
            self._loop.after(self._latency_s, receive, attempt)

    def _hold(self, receive: Callable[[Attempt], None], attempt: Attempt) -> None:
        """An event that a cut keeps from the gateway."""
        self._held.setdefault(attempt.replica, []).append((receive, attempt))

    def _stalled_by_cut(self, attempt: Attempt) -> None:
        if self._replicas.all[attempt.replica].is_cut:
            self._stalled(attempt)

    def _accepted(self, attempt: Attempt) -> None:
        if attempt.lease is not None:
            attempt.lease.answered()

    def _on_first_output(self, attempt: Attempt) -> None:
        lease, request = attempt.lease, attempt.request
        if lease is None:
            return
        attempt.has_output = True
        request.first_token_s = self._loop.now_s
        request.cached_tokens = attempt.cached_tokens
        if request.deployment in self.signals:
            self.signals[request.deployment].first_output(self._loop.now_s - attempt.start_s)
        lease.prefilled(self._loop.now_s)
        self._picker.answered(lease, attempt.cached_tokens)

    def _on_complete(self, attempt: Attempt) -> None:
        if attempt.lease is None:
            return
        request = attempt.request
        attempt.produced_tokens = request.output_tokens
        if request.deployment in self.signals:
            streamed_s = self._loop.now_s - request.first_token_s
            self.signals[request.deployment].streamed(streamed_s, request.output_tokens)
        self._release(attempt)
        self._finish(request, attempt, Outcome.FINISHED)

    def _timed_out(self, attempt: Attempt) -> None:
        """The message never came through: it says nothing of whether anybody lives there."""
        self._fail(attempt, is_down=False)

    def _refused(self, attempt: Attempt) -> None:
        """Nobody listens there."""
        self._fail(attempt, is_down=not self._replicas.all[attempt.replica].is_up)

    def _broken(self, attempt: Attempt) -> None:
        """The connection broke under a running request."""
        self._fail(attempt, is_down=not self._replicas.all[attempt.replica].is_up)

    def _stalled(self, attempt: Attempt) -> None:
        """Nothing came for too long."""
        if attempt.lease is not None:
            replica = self._replicas.all[attempt.replica]
            replica.running.pop(attempt, None)
            replica.engine.abort(attempt)
            self._fail(attempt, is_down=False)

    def _fail(self, attempt: Attempt, *, is_down: bool) -> None:
        """Eject the endpoint, and try another if the caller saw nothing yet."""
        lease = attempt.lease
        if lease is None:
            return
        now_s, breaker = self._loop.now_s, lease.endpoint.breaker
        was_closed = breaker.state is BreakerState.CLOSED
        was_ejected = breaker.retry_after_s(now_s) > 0
        lease.fail(now_s)
        begins_ejection = not was_ejected and breaker.retry_after_s(now_s) > 0
        if is_down and (was_closed or begins_ejection):  # else its probe is due by an earlier one
            self._invariants.refused(lease.endpoint.spec.id, now_s)
        self._retry_or_end(attempt)

    def _turned_away(self, attempt: Attempt) -> None:
        """The engine's own queue is full: it lives, and another may take the request."""
        if attempt.lease is not None:
            attempt.lease.succeed()
            self._retry_or_end(attempt)

    def _not_servable(self, attempt: Attempt) -> None:
        """The request is wrong, wherever it goes."""
        if attempt.lease is not None:
            attempt.lease.succeed()
            self._release(attempt)
            self._finish(attempt.request, attempt, Outcome.REFUSED)

    def _retry_or_end(self, attempt: Attempt) -> None:
        request, lease = attempt.request, attempt.lease
        assert lease is not None
        name = lease.endpoint.spec.id
        self._release(attempt)
        excluded = self._excluded.setdefault(request.id, set())
        excluded.add(name)
        may_retry = (
            not attempt.has_output
            and request.attempts < attempts_max
            and self._picker.has_others(self._pools(request.deployment), excluded)
            and self._retries.withdraw(self._loop.now_s)
        )
        if may_retry:
            self.retries_total += 1
            self._try(request, attempt)
        else:
            self._finish(request, attempt, Outcome.FAILED)

    def _release(self, attempt: Attempt) -> None:
        lease = attempt.lease
        assert lease is not None
        lease.release()
        attempt.lease = None
        self._invariants.released()
        if self._has_limits:
            self._attempts_open -= 1
            if self._queues:
                self._pump(attempt.request.deployment)

    def _on_connection_cut(self, attempt: Attempt) -> None:
        if self._replicas.all[attempt.replica].is_cut:
            self._hold(self._broken, attempt)
        else:
            self._loop.after(self._latency_s, self._broken, attempt)

    def _finish(
        self,
        request: SimRequest,
        attempt: Attempt | None,
        outcome: Outcome,
        *,
        is_admitted: bool = True,
    ) -> None:
        self._invariants.end(request, outcome)
        if self._excluded:
            self._excluded.pop(request.id, None)
        request.outcome = outcome
        request.end_s = self._loop.now_s
        if attempt is not None:
            request.produced_tokens = attempt.produced_tokens
        if (turn_tokens := self._turns.pop(request.id, 0)) and request.deployment in self._queues:
            unused_tokens = turn_tokens - request.prompt_tokens - request.produced_tokens
            queue = self._queues[request.deployment]
            queue.give_back(str(request.tenant), request.priority, unused_tokens)
        if self._books is not None and is_admitted:
            self._books.settle(request, attempt, outcome)
        self._on_end(request)

    def _wait(self, request: SimRequest) -> None:
        """Every endpoint is full: take a place in the fair queue."""
        self.waited_total += 1
        queue = self._queues.setdefault(request.deployment, FairQueue(waiting_requests_max))
        tokens = min(ticket_tokens_max, request.prompt_tokens + request.max_tokens)
        ticket = Ticket(str(request.tenant), request.priority, tokens, request)
        displaced = queue.push(ticket)
        if displaced is not ticket:
            self._tickets[request.id] = ticket
            self._loop.after(wait_s_max[request.priority], self._give_up, request)
        if displaced is not None:
            self._tickets.pop(displaced.item.id, None)
            self._finish(displaced.item, None, Outcome.REFUSED)
        if not self._pumps_pending:
            self._pumps_pending = True
            self._loop.after(pump_interval_s, self._pump_all, None)

    def _give_up(self, request: SimRequest) -> None:
        ticket = self._tickets.pop(request.id, None)
        if ticket is not None:
            self._queues[request.deployment].discard(ticket)
            self._finish(request, None, Outcome.REFUSED)

    def _pump_all(self, _: None) -> None:
        for deployment in tuple(self._queues):
            self._pump(deployment)
        self._pumps_pending = bool(self._queues)
        if self._pumps_pending:
            self._loop.after(pump_interval_s, self._pump_all, None)

    def _pump(self, deployment: int) -> None:
        """Start waiting requests in their order as long as there is room."""
        queue = self._queues.get(deployment)
        if queue is None:
            return
        while (ticket := queue.next()) is not None:
            request = ticket.item
            try:
                lease = self._lease(request, is_overdue=queue.is_overdue(ticket))
            except Saturated:
                return
            except Unavailable:
                queue.discard(ticket)
                self._tickets.pop(request.id, None)
                self._finish(request, None, Outcome.FAILED)
                continue
            queue.start(ticket)
            self._turns[request.id] = ticket.tokens
            self._tickets.pop(request.id, None)
            self._send(request, lease)
        self._queues.pop(deployment, None)

    def _poll_soon(self) -> None:
        """Ask endpoints for their load as long as anything runs."""
        self._polls_pending = True
        self._loop.after(poll_interval_s, self._poll, None)

    def _poll(self, _: None) -> None:
        """What the real load follower does: ask those that are nearly full."""
        busy, self._busy = self._busy, {}
        for index in busy:
            replica = self._replicas.all[index]
            endpoint = self._replicas.endpoints.find(replica.name)
            if endpoint is None:
                continue
            if not endpoint.capacity.is_near(endpoint.in_flight_requests):
                continue
            self._busy[index] = None
            if replica.is_up and not replica.is_hung:
                running, waiting = replica.engine.load()
                endpoint.report_load(running=running, waiting=waiting, now_s=self._loop.now_s)
        self._polls_pending = self._attempts_open > 0
        if self._polls_pending:
            interval_s = 0.1 if self._queues else poll_interval_s
            self._loop.after(interval_s, self._poll, None)


def work_of(request: SimRequest) -> Work:
    """What a gateway knows of a request: tokens stand for its text, segments for its blocks."""
    ends: tuple[int, ...] = (request.prompt_tokens,)
    if len(request.segments) > 1:
        ends = tuple(accumulate([tokens for _, tokens in request.segments]))
    prefix = PromptPrefix(request.keys, ends)
    return Work(request.prompt_tokens, request.max_tokens, prefix)
