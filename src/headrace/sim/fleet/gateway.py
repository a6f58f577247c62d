"""A gateway on the virtual clock: the router's own code, with a network of delays around it.

    arrive -> reserve -> lease (or wait) -> send ~ latency ~> engine ~> first token ~> end -> settle
                           ^-- retry, before the first token, within the retry budget --'

The picker, its prefix index, leases, breakers and the retry budget are the real ones. Under the
policy `headrace` endpoints have their learnt limits and the fair queue decides who is next
(`waiting_line`); under the others nothing is limited here. It mirrors `gateway/attempts.py`, which
is the same order of calls over real connections; `wire` is what lies between it and the engines.
"""

import random
from collections.abc import Callable
from itertools import accumulate

from headrace.base.errors import Unavailable
from headrace.router.breaker import closed
from headrace.router.endpoint import Endpoint
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker, Saturated
from headrace.router.policy import RoutingPolicy
from headrace.router.prompt_prefix import PromptPrefix
from headrace.router.retry_budget import RetryBudget
from headrace.sim.fleet.attempt import Attempt, Replica
from headrace.sim.fleet.books import Books
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.invariants import Invariants
from headrace.sim.fleet.replicas import Replicas
from headrace.sim.fleet.request import Outcome, SimRequest, finished
from headrace.sim.fleet.signals import TrafficSignals
from headrace.sim.fleet.traffic import follow_up
from headrace.sim.fleet.waiting_line import WaitingLine
from headrace.sim.fleet.wire import Wire
from headrace.spec.priority import Priority

attempts_max = 3  # as in the real exchange
poll_interval_s = 0.5  # as the real load follower
batch = Priority.BATCH  # found sooner than an enum's member


class SimGateway:
    """Routes every request of a simulation."""

    def __init__(
        self,
        loop: Loop,
        replicas: Replicas,
        wire: Wire,
        *,
        policy: RoutingPolicy | None,
        rng: random.Random,
        invariants: Invariants,
        books: Books | None,
        record: Callable[[SimRequest], None],
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._wire = wire
        self._has_limits = policy is None  # headrace's own
        self._picker = Picker(replicas.endpoints, rng, policy)
        self._invariants = invariants
        self._books = books
        self._record = record
        self._retries = RetryBudget(0.0)
        self._line = WaitingLine(loop, self, self._end_unserved)
        self._excluded: dict[int, set[str]] = {}  # of requests that were tried
        self.signals: dict[int, TrafficSignals] = {}  # by deployment, of those that are scaled
        self._polls_pending = False
        self._busy: dict[int, None] = {}  # replicas worth asking for their load, nearly full
        self.retries_total = 0
        self.admitted_total = 0
        replicas.on_broken = wire.break_connection
        wire.join(self)

    @property
    def waited_total(self) -> int:
        """Requests that had to wait for a place."""
        return self._line.waited_total

    def waiting(self, deployment: int) -> tuple[int, int]:
        """Requests and tokens that wait for a place at a deployment's replicas."""
        return self._line.length(deployment)

    def arrive(self, request: SimRequest) -> None:
        """A request comes in."""
        self._invariants.requests_open += 1
        if self._books is not None and not self._books.reserve(request):
            self._finish(request, None, Outcome.REFUSED, is_admitted=False)
            return
        self.admitted_total += 1
        if self.signals and request.deployment in self.signals:
            self.signals[request.deployment].arrived(request)
        self._retries.deposit()
        if self._line.queues and request.deployment in self._line.queues:
            self._line.wait(request)
        else:
            self._try(request, None)

    def _try(self, request: SimRequest, failed: Attempt | None) -> None:
        """Lease an endpoint and send; wait if all are full, end if there is none."""
        try:
            lease = self.lease(request)
        except Saturated:
            self._line.wait(request)
        except Unavailable:
            self._finish(request, failed, Outcome.FAILED)
        else:
            self.send(request, lease)

    def lease(self, request: SimRequest, *, is_overdue: bool = False) -> Lease:
        """The real picker's choice; Saturated if all are full, Unavailable if there is none."""
        excluded = self._excluded.get(request.id, ()) if self._excluded else ()
        has_limits = self._has_limits
        is_batch = request.priority is batch
        return self._picker.lease(
            self._replicas.pools[request.deployment],
            work_of(request),
            self._loop.now_s,
            excluded,
            over_capacity=not has_limits or bool(excluded),
            leaves_spare=is_batch and has_limits and not (is_overdue or excluded),
            tries_ejected=True,
        )

    def send(self, request: SimRequest, lease: Lease) -> None:
        """A try of the request goes out."""
        request.attempts += 1
        endpoint, now_s = lease.endpoint, self._loop.now_s
        is_ejected = endpoint.breaker.state is not closed
        is_last_resort = is_ejected and not self._has_better(request, endpoint)
        self._invariants.sent(endpoint, now_s, is_last_resort=is_last_resort)
        replica = self._replicas.by_endpoint[endpoint]
        if self._has_limits:
            if endpoint.capacity.is_near(endpoint.in_flight_requests):
                self._busy[replica.index] = None
            if not self._polls_pending:
                self._poll_soon()
        self._wire.send(Attempt(request, request.attempts, lease, replica, now_s))

    def _has_better(self, request: SimRequest, taken: Endpoint) -> bool:
        """Whether another endpoint that it did not try is not ejected."""
        excluded = self._excluded.get(request.id, ())
        return any(
            endpoint.breaker.state is closed and endpoint.spec.id not in excluded
            for endpoint in self._replicas.endpoints.pool(taken.spec.pool)
            if endpoint is not taken
        )

    def hang(self, replica: Replica) -> None:
        """A fault: the engine falls silent; streams in it will stall."""
        self._replicas.hang(replica)
        self._wire.watch_silent(replica)

    def accepted(self, attempt: Attempt) -> None:
        """The engine took it."""
        if attempt.lease is not None:
            attempt.lease.answered()

    def first_output(self, attempt: Attempt) -> None:
        """Its first token came."""
        lease, request, now_s = attempt.lease, attempt.request, self._loop.now_s
        if lease is None:
            return
        attempt.has_output = True
        request.first_token_s = now_s
        request.cached_tokens = cached_tokens = attempt.cached_tokens
        if self.signals and request.deployment in self.signals:
            self.signals[request.deployment].first_output(now_s - attempt.start_s)
        lease.prefilled(now_s)
        self._picker.answered(lease, cached_tokens)

    def completed(self, attempt: Attempt) -> None:
        """Its last token came."""
        if attempt.lease is None:
            return
        request = attempt.request
        attempt.produced_tokens = request.output_tokens
        if self.signals and request.deployment in self.signals:
            streamed_s = self._loop.now_s - request.first_token_s
            self.signals[request.deployment].streamed(streamed_s, request.output_tokens)
        self._release(attempt)
        self._finish(request, attempt, finished)

    def failed(self, attempt: Attempt, *, is_down: bool) -> None:
        """Eject the endpoint, and try another if the caller saw nothing yet."""
        lease = attempt.lease
        if lease is None:
            return
        now_s, breaker = self._loop.now_s, lease.endpoint.breaker
        was_closed = breaker.state is closed
        was_ejected = breaker.retry_after_s(now_s) > 0
        lease.fail(now_s)
        begins_ejection = not was_ejected and breaker.retry_after_s(now_s) > 0
        if is_down and (was_closed or begins_ejection):  # else its probe is due by an earlier one
            self._invariants.refused(lease.endpoint.spec.id, now_s)
        self._retry_or_end(attempt)

    def turned_away(self, attempt: Attempt) -> None:
        """The engine's own queue is full: it lives, and another may take the request."""
        if attempt.lease is not None:
            attempt.lease.succeed()
            self._retry_or_end(attempt)

    def not_servable(self, attempt: Attempt) -> None:
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
            and self._picker.has_others(self._replicas.pools[request.deployment], excluded)
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
        if self._line.queues:
            self._line.pump(attempt.request.deployment)

    def _end_unserved(self, request: SimRequest, outcome: Outcome) -> None:
        """It waited, and never came to a replica."""
        self._finish(request, None, outcome)

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
        if self._line.turns:
            self._line.ended(request)
        if self._books is not None and is_admitted:
            self._books.settle(request, attempt, outcome)
        self._record(request)
        if request.session is not None:
            follow_up(request)

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
        self._polls_pending = self._invariants.attempts_open > 0
        if self._polls_pending:
            interval_s = 0.1 if self._line.queues else poll_interval_s
            self._loop.after(interval_s, self._poll, None)


def work_of(request: SimRequest) -> Work:
    """What a gateway knows of a request: tokens stand for its text, segments for its blocks."""
    ends: tuple[int, ...] = (request.prompt_tokens,)
    if len(request.segments) > 1:
        ends = tuple(accumulate([tokens for _, tokens in request.segments]))
    prefix = PromptPrefix(request.keys, ends)
    return Work(request.prompt_tokens, request.max_tokens, prefix)
