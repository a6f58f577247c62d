"""One admitted request to an engine and back; elsewhere again, as long as no byte went out.

    lease an endpoint -> send -> headers -> first output -> ... -> end
         ^                 |        |            |
         '--- retry -------'--------'------------'   within the budget, never twice the same one

An unstreamed answer goes out whole, so it may be retried until it is complete. A stream may be
until its first event; heartbeats are none. What a broken attempt used is not charged.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from headrace.adapters.registry import find_adapter
from headrace.base.clock import Clock
from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    NotFound,
    Unavailable,
    UpstreamFailed,
)
from headrace.gateway.account import Account
from headrace.gateway.admission import bytes_per_token
from headrace.gateway.heartbeat import Heartbeat
from headrace.gateway.metering import Metering
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.rewriter import StreamRewriter, WholeRewrite, rewrite_whole
from headrace.gateway.signals import TrafficCounts
from headrace.gateway.traces import attempt_attributes
from headrace.gateway.upstream import (
    ask_usage,
    engine_headers,
    engine_url,
    refusal,
    small_answer_bytes_max,
    stream_error,
)
from headrace.gateway.waiting_room import Errand, WaitingRoom
from headrace.http.asgi import EventStream
from headrace.http.client import Answer, HttpClient
from headrace.observability.tracing import RequestTrace
from headrace.router.endpoint import EndpointSpec
from headrace.router.lease import Lease
from headrace.router.picker import Picker
from headrace.router.retry_budget import RetryBudget
from headrace.spec.settlements import TokenUsage

Result = TypeVar("Result")

attempts_max = 3
answer_bytes_max = 64 * 1024 * 1024  # of an unstreamed answer: a whole context as text


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an engine may be silent."""

    first_output_s: float = 600.0  # the queue and a long prompt on a slow machine
    stall_s: float = 120.0  # between chunks
    whole_s: float = 1800.0  # for an unstreamed answer, which shows no sign of life before its end


@dataclass(frozen=True, slots=True)
class Forwarding:
    """What every request shares on its way."""

    client: HttpClient
    picker: Picker
    room: WaitingRoom
    retries: RetryBudget
    clock: Clock
    timeouts: Timeouts
    counters: GatewayCounters
    traffic: TrafficCounts


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine is asked, whichever it is."""

    path: str
    request_id: str
    errand: Errand
    cache_salt: str
    body_for: Callable[[EndpointSpec, Mapping[str, object]], bytes]  # with the adapter's fields
    streams: bool = False
    usage_chunk: bool = False  # what the caller wants of a stream's usage
    usage_in_every_chunk: bool = False
    metering: Metering = Metering.GENERATES
    trace: RequestTrace | None = None


class Exchange:
    """The attempts of one request."""

    def __init__(self, forwarding: Forwarding, request: EngineRequest, account: Account) -> None:
        self._forwarding = forwarding
        self._request = request
        self._account = account
        self._start_s = forwarding.clock.monotonic_s()
        self._attempt_s = self._start_s
        self._sent_to: EndpointSpec | None = None  # where it may have used something
        self._may_retry = True
        self.first_output_s: float | None = None  # seconds from the start
        self.last_output_s: float | None = None  # the same, of a stream that ended well
        self.attempts = 0
        self.endpoint_id = ""

    async def whole(self) -> WholeRewrite:
        """The unstreamed answer; raises what the last attempt failed with."""
        return await self._with_retries(self._attempt_whole)

    async def stream(self, out: EventStream) -> bool:
        """Pass a stream on up to its end marker, which is left to the caller.

        True: the usage that the account observed is the engine's last word."""
        beat = Heartbeat(out)
        beat.start()

        async def attempt(lease: Lease) -> bool:
            return await self._attempt_stream(lease, out, beat)

        try:
            return await self._with_retries(attempt)
        finally:
            beat.stop()

    async def final_usage(self) -> TokenUsage | None:
        """What a request that did not end well used, by the engine's record; None: it is unknown.

        Zero if no engine got it."""
        if self._sent_to is None:
            return TokenUsage()
        if not find_adapter(self._sent_to.engine).keeps_usage_records:
            return None
        return await ask_usage(self._forwarding.client, self._sent_to, self._request.request_id)

    def estimate(self, body: bytes) -> TokenUsage:
        """A guess at what an unstreamed answer used, for engines that never tell."""
        prompt_tokens = self._request.errand.work.prefill_tokens
        guess = TokenUsage(prompt_tokens, 0, len(body) // bytes_per_token)
        return self._request.metering.of(guess)

    async def _with_retries(self, attempt: Callable[[Lease], Awaitable[Result]]) -> Result:
        forwarding = self._forwarding
        forwarding.retries.deposit()
        excluded: set[str] = set()
        failure: HeadraceError | None = None
        trace = self._request.trace
        while True:
            if trace is not None:
                trace.phase("queue")
            try:
                lease = await self._lease(excluded)
            except Unavailable as error:
                raise failure or error from None
            self.attempts += 1
            self.endpoint_id = self._account.replica_id = lease.endpoint.spec.id
            self._attempt_s = forwarding.clock.monotonic_s()
            forwarding.traffic.attempted(lease.endpoint.spec)
            if trace is not None:
                trace.phase("attempt", attempt_attributes(lease, self.attempts))
            try:
                return await attempt(lease)
            except HeadraceError as error:
                if trace is not None:
                    trace.failed(error.code)
                if error.retryable:
                    forwarding.traffic.failed(lease.endpoint.spec)
                if not self._is_worth_another(error):
                    raise
                failure = error
            finally:
                lease.release()
                forwarding.room.pump(self._request.errand.model_name)
            excluded.add(self.endpoint_id)
            self._account.restart()
            forwarding.counters.retries += 1

    async def _lease(self, excluded: set[str]) -> Lease:
        """A place at an endpoint: the first one in the request's turn, others at once.

        A retry had its turn already, and the retry budget bounds what it adds to full ones."""
        errand, forwarding = self._request.errand, self._forwarding
        if not excluded:
            return await forwarding.room.lease(errand)
        now_s = forwarding.clock.monotonic_s()
        return forwarding.picker.lease(
            errand.pools, errand.work, now_s, excluded, over_capacity=True
        )

    def _is_worth_another(self, error: HeadraceError) -> bool:
        """Whether another endpoint may be tried; takes from the budget if so."""
        return (
            self._may_retry
            and error.retryable
            and not isinstance(error, DeadlineExceeded)  # the time is spent
            and self.attempts < attempts_max
            and self._forwarding.retries.withdraw(self._forwarding.clock.monotonic_s())
        )

    async def _attempt_whole(self, lease: Lease) -> WholeRewrite:
        timeout_s = self._forwarding.timeouts.whole_s
        async with await self._open(lease, timeout_s) as answer:
            try:
                body = await answer.read_all(answer_bytes_max, timeout_s)
            except HeadraceError:
                self._eject(lease)
                raise
        lease.prefilled(None)
        self.first_output_s = self._forwarding.clock.monotonic_s() - self._start_s
        whole = rewrite_whole(body, self._request.errand.model_name)
        self._learn(lease, whole.usage)
        metering = self._request.metering
        if whole.usage is None or metering is Metering.GENERATES:
            return whole
        return WholeRewrite(whole.body, metering.of(whole.usage))

    async def _attempt_stream(self, lease: Lease, out: EventStream, beat: Heartbeat) -> bool:
        rewriter = StreamRewriter(
            self._request.errand.model_name,
            find_adapter(lease.endpoint.spec.engine),
            usage_chunk=self._request.usage_chunk,
            usage_in_every_chunk=self._request.usage_in_every_chunk,
        )
        timeouts = self._forwarding.timeouts
        async with await self._open(lease, timeouts.first_output_s) as answer:
            timeout_s = timeouts.first_output_s
            while not rewriter.is_done:
                chunk = await self._read_chunk(lease, answer, timeout_s, rewriter.may_end)
                events = rewriter.feed(chunk) if chunk else rewriter.finish()
                self._observe(rewriter)
                if events:
                    if self.first_output_s is None:
                        beat.stop()
                        self._may_retry = False
                        self._note_first_output(lease)
                    await out.write(events)
                    timeout_s = timeouts.stall_s
                if rewriter.error_body is not None:
                    raise stream_error(rewriter.error_body)
        self.last_output_s = self._forwarding.clock.monotonic_s() - self._start_s
        self._learn(lease, rewriter.usage)
        return rewriter.usage is not None

    async def _open(self, lease: Lease, timeout_s: float) -> Answer:
        """Send the request; an answer of status 200, or what its refusal means."""
        spec = lease.endpoint.spec
        client = self._forwarding.client
        adapter = find_adapter(spec.engine)
        extras = adapter.extras(
            stream=self._request.streams,
            request_id=self._request.request_id,
            cache_salt=self._request.cache_salt,
        )
        generates = self._request.metering is Metering.GENERATES
        headers = engine_headers(spec, extras.headers)
        if self._request.trace is not None:
            headers["traceparent"] = self._request.trace.traceparent
        self._sent_to = spec
        try:
            answer = await client.open(
                "POST",
                engine_url(spec, self._request.path),
                headers=headers,
                body=self._request.body_for(spec, extras.fields if generates else {}),
                timeout_s=timeout_s,
            )
        except HeadraceError as error:
            if isinstance(error, Unavailable):
                self._sent_to = None  # there was no connection
            self._eject(lease)
            raise
        if answer.status != 200:
            async with answer:
                body = await answer.read_all(small_answer_bytes_max, timeout_s)
            self._sent_to = None
            if answer.status in (502, 503):
                self._eject(lease)
            else:
                lease.succeed()
            if answer.status in (404, 405) and not generates:
                raise NotFound(f"The engine of this model does not offer {self._request.path}.")
            raise refusal(spec, answer.status, body)
        lease.succeed()
        return answer

    async def _read_chunk(
        self, lease: Lease, answer: Answer, timeout_s: float, may_end: bool
    ) -> bytes:
        """What came next; empty at the end of a stream that may end so."""
        try:
            chunk = await answer.read_chunk(timeout_s)
            if not chunk and not may_end:
                raise UpstreamFailed("The engine ended its answer early.")
        except HeadraceError:
            self._eject(lease)
            raise
        return chunk

    def _eject(self, lease: Lease) -> None:
        """The endpoint broke: no request goes there for a while."""
        lease.fail(self._forwarding.clock.monotonic_s())
        self._forwarding.counters.ejections += 1

    def _note_first_output(self, lease: Lease) -> None:
        now_s = self._forwarding.clock.monotonic_s()
        lease.prefilled(now_s)
        self._forwarding.traffic.first_output(lease.endpoint.spec, now_s - self._attempt_s)
        self.first_output_s = now_s - self._start_s

    def _learn(self, lease: Lease, usage: TokenUsage | None) -> None:
        """An attempt ended well: what it used says how good the router's prediction was."""
        if usage is None:
            return
        self._forwarding.picker.answered(lease, usage.cached_tokens)
        self._forwarding.traffic.used(lease.endpoint.spec, usage)

    def _observe(self, rewriter: StreamRewriter) -> None:
        """Tell the account what passed; without the engine's counts a chunk is a token."""
        usage = rewriter.usage
        if usage is None and rewriter.content_chunks:
            usage = TokenUsage(self._request.errand.work.prefill_tokens, 0, rewriter.content_chunks)
        if usage is not None and usage != self._account.usage:
            self._account.observe(usage)
