"""One admitted request to an engine and back; elsewhere again, as long as no byte went out.

    lease an endpoint -> send -> headers -> first output -> ... -> end
         ^                 |        |            |
         '--- retry -------'--------'------------'   within the budget, never twice the same one

An unstreamed answer goes out whole, so it may be retried until it is complete. A stream may be
until its first event; heartbeats are none. What a broken attempt used is the platform's (`borne`).
A deployment may want its slow attempts raced by another one: see `hedging`.
"""

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

from headrace.adapters.registry import find_adapter
from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    Unavailable,
    UpstreamFailed,
)
from headrace.gateway.account import Account
from headrace.gateway.attempt import Attempt
from headrace.gateway.borne import hedge_suffix, try_suffix, usage_before_refusal
from headrace.gateway.context_room import bytes_per_token
from headrace.gateway.draining import Out, Outlet, Rest, outliving
from headrace.gateway.forwarding import EngineRequest, Forwarding
from headrace.gateway.halves import OtherHalf, with_other_half
from headrace.gateway.heartbeat import Heartbeat
from headrace.gateway.hedging import Race, Run, header_name
from headrace.gateway.metering import Metering
from headrace.gateway.pace import Pace
from headrace.gateway.rewriter import StreamRewriter, WholeRewrite, rewrite_whole, said_bytes
from headrace.gateway.sending import eject, note_failure, send
from headrace.gateway.traces import attempt_attributes
from headrace.gateway.upstream import (
    ask_usage,
    ask_usage_patiently,
    stream_error,
)
from headrace.http.asgi import EventStream, Header
from headrace.http.client import Answer
from headrace.router.fair_queue import ticket_tokens_max
from headrace.router.lease import Lease
from headrace.spec.settlements import TokenUsage, UnitCounts

Result = TypeVar("Result")

attempts_max = 3
# What may take long before its first byte, as all of it comes at once.
long_works = (Metering.GENERATES, Metering.RELAYS)
answer_bytes_max = 64 * 1024 * 1024  # of an unstreamed answer: a whole context as text


class Exchange:
    """The attempts of one request."""

    def __init__(self, forwarding: Forwarding, request: EngineRequest, account: Account) -> None:
        self._forwarding = forwarding
        self._request = request
        self._account = account
        self._start_s = forwarding.clock.monotonic_s()
        self._counted: Attempt | None = None  # whose use the caller pays for
        self._race: Race[Any] | None = None  # there is one at most
        self._outlet: Outlet | None = None
        self.rest: Rest | None = None  # of an answer whose caller left, which is to be finished
        self._turn_tokens = 0  # charged for its turn in the queue; 0: it did not wait
        self._used: TokenUsage | None = None  # of an attempt that ended well
        self.first_output_s: float | None = None  # seconds from the start
        # The same, of a stream that ended well, less what its reader held up since the first.
        self.last_output_s: float | None = None
        self.attempts = 0
        self.endpoint_id = ""

    async def whole(self) -> WholeRewrite:
        """The unstreamed answer; raises what the last attempt failed with."""
        try:
            return await self._with_retries(self._attempt_whole)
        finally:
            self._settle_turn()

    async def stream(self, out: EventStream) -> bool:
        """Pass a stream on up to its end marker, which is left to the caller.

        True: the usage that the account observed is the engine's last word."""
        beat = Heartbeat(out)
        beat.start(self._forwarding.timeouts.headers_grace_s)

        async def run(attempt: Attempt) -> bool:
            return await self._attempt_stream(attempt, self._to(attempt, out), beat)

        try:
            return await self._with_retries(run)
        finally:
            beat.stop()
            self._settle_turn()

    async def final_usage(self, *, is_awaited: bool) -> TokenUsage | None:
        """What a request that did not end well used, by the engine's record; None: it is unknown.

        Zero if no engine got it. Unless somebody waits for the end, the engine is asked again
        where it does not answer, or has not seen the request yet that was cut behind it."""
        used_at = None if self._counted is None else self._counted.used_at
        if self._counted is None or used_at is None:
            return TokenUsage()
        if not find_adapter(used_at.spec.engine).keeps_usage_records:
            return None
        if self._counted.was_refused:
            return await usage_before_refusal(self._forwarding.client, used_at)
        ask = ask_usage if is_awaited else ask_usage_patiently
        usage = await ask(self._forwarding.client, used_at.spec, used_at.request_id)
        return None if usage is None else used_at.part_of(usage)

    def units_of(self, known: UnitCounts) -> UnitCounts:
        """What the request used besides tokens, which is known before it is sent."""
        return known

    def used(self, result: object) -> TokenUsage | None:
        """The engine's last word by what a finished attempt gave; None: what passed has to do."""
        if isinstance(result, WholeRewrite):
            if result.usage is None:
                self._account.observe(self.estimate(result.body))
            return result.usage
        if result is True:  # of a stream: the account has observed it
            return self._account.usage
        return result if isinstance(result, TokenUsage) else None

    @property
    def hedge_headers(self) -> list[Header]:
        """Which of two attempts answered, once that is known; empty if there was one."""
        result = None if self._race is None else self._race.result
        return [] if result is None else [(header_name, result.encode())]

    @property
    def _created(self) -> int:
        """When an answer is made, for engines that do not say it; Unix seconds."""
        return int(self._forwarding.clock.wall_s())

    def estimate(self, body: bytes) -> TokenUsage:
        """A guess at what an unstreamed answer used, for engines that never tell."""
        prompt_tokens = self._request.errand.work.prefill_tokens
        guess = TokenUsage(prompt_tokens, 0, said_bytes(body) // bytes_per_token)
        return self._request.metering.of(guess)

    async def _with_retries(self, run: Run[Result]) -> Result:
        forwarding = self._forwarding
        forwarding.retries.deposit()
        excluded = set(self._request.errand.unable_ids)
        failure: HeadraceError | None = None
        trace = self._request.trace
        while True:
            if trace is not None:
                trace.phase("queue")
            try:
                lease = await self._lease(excluded)
            except Unavailable as error:
                raise failure or error from None
            attempt = self._begin(lease, self._request.request_id)
            self._count(attempt)
            if trace is not None:
                trace.phase("attempt", attempt_attributes(lease, self.attempts))
            excluded.add(lease.endpoint.spec.id)
            try:
                delay_s = self._hedge_delay_s(attempt)
                if delay_s is None:
                    return await self._tried(run, attempt)
                return await self._raced(run, attempt, delay_s, excluded)
            except HeadraceError as error:
                if trace is not None:
                    trace.failed(error.code)
                if not self._is_worth_another(error, excluded):
                    raise
                failure = error
            self._account.restart()
            self._bear(attempt)
            forwarding.counters.retries += 1

    def _bear(self, attempt: Attempt) -> None:
        """What a broken attempt used before another one follows is not its caller's."""
        reserve = self._request.borne_account
        if attempt.used_at is None or reserve is None:
            return
        attempt.has_failed = True
        suffix, borne = try_suffix(attempt.number), self._forwarding.borne
        if attempt.was_refused:
            borne.settle_if_used(lambda: reserve(suffix), attempt)
            return
        with suppress(HeadraceError):  # a full disk: the engine's counters have it still
            prompt_tokens = self._request.errand.work.prefill_tokens
            borne.settle(reserve(suffix), attempt, prompt_tokens)

    def _begin(self, lease: Lease, request_id: str) -> Attempt:
        self.attempts += 1
        self._forwarding.traffic.attempted(lease.endpoint.spec)
        now_s = self._forwarding.clock.monotonic_s()
        return Attempt(lease, request_id, now_s, self.attempts)

    def _count(self, attempt: Attempt) -> None:
        """The caller pays for this attempt from now on."""
        self._counted = attempt
        self.endpoint_id = self._account.replica_id = attempt.spec.id

    async def _tried(self, run: Run[Result], attempt: Attempt) -> Result:
        if not attempt.spec.runs_to_its_end:  # nearly always
            return await self._run(run, attempt)
        return await outliving(self._run(run, attempt), lambda task: self._keep(task, attempt))

    def _keep(self, task: asyncio.Task[Result], attempt: Attempt) -> bool:
        """Have what nobody waits for any more finished, if it was sent and its caller pays."""
        if attempt is not self._counted or attempt.sent_to is None:
            return False
        self.rest = self._forwarding.drains.keep(task)
        if self.rest is None:
            return False
        if self._outlet is not None:
            self._outlet.shut()
        return True

    def _to(self, attempt: Attempt, out: Out) -> Out:
        """Where an attempt writes: to the client, which one that outlives it can do without."""
        if not attempt.spec.runs_to_its_end:
            return out
        self._outlet = Outlet(out)
        return self._outlet

    async def _run(self, run: Run[Result], attempt: Attempt) -> Result:
        try:
            if attempt.spec.is_half:
                half = OtherHalf(self._forwarding, self._request)
                return await with_other_half(run, attempt, half)
            return await run(attempt)
        except HeadraceError as error:
            if error.retryable:
                self._forwarding.traffic.failed(attempt.spec)
            raise
        finally:
            attempt.lease.release()
            self._forwarding.room.pump(self._request.errand.model_name)

    def _hedge_delay_s(self, attempt: Attempt) -> float | None:
        """How long to wait before another replica is asked too; None: for ever."""
        if attempt.spec.hedging is None:  # nearly always
            return None
        if self._request.borne_account is None or self._race is not None:
            return None
        return self._forwarding.hedger.delay_s(attempt.spec, shows_progress=self._shows_progress)

    @property
    def _shows_progress(self) -> bool:
        """Whether the first byte comes before the work is done."""
        return self._request.streams or self._request.metering not in long_works

    async def _raced(
        self, run: Run[Result], first: Attempt, delay_s: float, excluded: set[str]
    ) -> Result:
        """As `_tried`, with a second attempt if the first is slow."""
        self._race = race = Race[Result](first)
        try:
            return await race.run(
                lambda each: self._tried(run, each), delay_s, lambda: self._begin_second(excluded)
            )
        finally:
            prompt_tokens = self._request.errand.work.prefill_tokens
            self._forwarding.hedger.ended(race, prompt_tokens)

    def _begin_second(self, excluded: set[str]) -> tuple[Attempt, Account] | None:
        """A second attempt where there is room, a retry in the budget, and its worst case held."""
        forwarding, errand = self._forwarding, self._request.errand
        reserve = self._request.borne_account
        assert reserve is not None, "only requests that may be hedged get here"
        now_s = forwarding.clock.monotonic_s()
        try:
            lease = forwarding.picker.lease(errand.pools, errand.work, now_s, excluded)
        except Unavailable:
            return None
        account = None
        if forwarding.retries.withdraw(now_s):
            with suppress(HeadraceError):
                account = reserve(hedge_suffix)
        if account is None:
            lease.release()
            return None
        excluded.add(lease.endpoint.spec.id)
        return self._begin(lease, account.reservation.request_id), account

    def _claim(self, attempt: Attempt) -> None:
        """The attempt has its first byte; ends it here if another one had its own before."""
        attempt.has_output = True
        if self._race is not None:
            self._race.claim(attempt)
            if attempt is not self._counted:
                self._account.restart()
                self._count(attempt)

    async def _lease(self, excluded: set[str]) -> Lease:
        """A place at an endpoint: the first one in the request's turn, others at once.

        A retry had its turn already, and the retry budget bounds what it adds to full ones."""
        errand, forwarding = self._request.errand, self._forwarding
        if not self.attempts:
            lease = await forwarding.room.lease(errand)
            self._turn_tokens = lease.turn_tokens
            return lease
        now_s = forwarding.clock.monotonic_s()
        return forwarding.picker.lease(
            errand.pools,
            errand.work,
            now_s,
            excluded,
            over_capacity=True,
            tries_ejected=errand.tries_ejected,
        )

    def _is_worth_another(self, error: HeadraceError, excluded: set[str]) -> bool:
        """Whether another endpoint may be tried; takes from the budget if so."""
        return (
            not self._account.has_answered
            and error.retryable
            and not isinstance(error, DeadlineExceeded)  # the time is spent
            and self.attempts < attempts_max
            and self._forwarding.picker.has_others(self._request.errand.pools, excluded)
            and self._forwarding.retries.withdraw(self._forwarding.clock.monotonic_s())
        )

    async def _attempt_whole(self, attempt: Attempt) -> WholeRewrite:
        lease, timeout_s = attempt.lease, self._forwarding.timeouts.whole_s
        metering = self._request.metering
        generates = metering is Metering.GENERATES
        dialect = find_adapter(attempt.spec.engine).dialect
        async with await self._open(attempt, timeout_s) as answer:
            try:
                body = await answer.read_all(answer_bytes_max, timeout_s)
            except HeadraceError:
                eject(self._forwarding, lease)
                raise
        whole = rewrite_whole(
            body, self._request.answer_name, dialect, self._created, generates=generates
        )
        lease.succeed()
        self._claim(attempt)
        lease.prefilled(None)
        self._note_first_byte(attempt)
        self._learn(lease, whole.usage, is_split=attempt.is_split)
        if whole.usage is None or generates:
            return whole
        return WholeRewrite(whole.body, metering.of(whole.usage))

    async def _attempt_stream(self, attempt: Attempt, out: Out, beat: Heartbeat) -> bool:
        lease = attempt.lease
        rewriter = StreamRewriter(
            self._request.answer_name,
            find_adapter(attempt.spec.engine),
            usage_chunk=self._request.usage_chunk,
            usage_in_every_chunk=self._request.usage_in_every_chunk,
            created=self._created,
        )
        timeouts, pace = self._forwarding.timeouts, Pace(self._forwarding.clock)
        async with await self._open(attempt, timeouts.first_output_s) as answer:
            beat.hasten()  # the engine has taken it
            timeout_s = timeouts.first_output_s
            while not rewriter.is_done:
                chunk = await self._read_chunk(lease, answer, timeout_s, may_end=rewriter.may_end)
                pace.arrived()
                events = rewriter.feed(chunk) if chunk else rewriter.finish()
                if events and not attempt.has_output:
                    self._claim(attempt)
                    beat.stop()
                    self._account.has_answered = True
                    self._note_first_output(attempt)
                    out.add_headers(self.hedge_headers)
                self._observe(rewriter, attempt)
                if events:
                    await pace.write(out, events)
                    timeout_s = timeouts.stall_s
                if rewriter.error_body is not None:
                    note_failure(self._forwarding, lease, 500, rewriter.error_body)
                    raise stream_error(rewriter.error_body)
        lease.succeed()
        streamed_s = self._note_last_output(pace)
        self._learn(lease, rewriter.usage, is_split=attempt.is_split)
        if rewriter.usage is not None and streamed_s is not None:
            tokens = rewriter.usage.completion_tokens
            self._forwarding.traffic.streamed(attempt.spec, *streamed_s, tokens)
        return rewriter.usage is not None

    async def _open(self, attempt: Attempt, timeout_s: float) -> Answer:
        return await send(self._forwarding, self._request, self._account, attempt, timeout_s)

    async def _read_chunk(
        self, lease: Lease, answer: Answer, timeout_s: float, *, may_end: bool
    ) -> bytes:
        """What came next; empty at the end of a stream that may end so."""
        try:
            chunk = await answer.read_chunk(timeout_s)
            if not chunk and not may_end:
                raise UpstreamFailed("The engine ended its answer early.")
        except HeadraceError:
            eject(self._forwarding, lease)
            raise
        return chunk

    def _note_first_output(self, attempt: Attempt) -> None:
        now_s = self._note_first_byte(attempt)
        attempt.lease.prefilled(now_s)
        self._forwarding.traffic.first_output(attempt.spec, now_s - attempt.start_s)

    def _note_first_byte(self, attempt: Attempt) -> float:
        """When it came."""
        now_s = self._forwarding.clock.monotonic_s()
        self.first_output_s = now_s - self._start_s
        self._forwarding.hedger.observe(
            attempt.spec, now_s - attempt.start_s, shows_progress=self._shows_progress
        )
        return now_s

    def _note_last_output(self, pace: Pace) -> tuple[float, float] | None:
        """A stream ended well; the least and the most seconds that the engine took for it."""
        if self.first_output_s is None:
            return None
        least_s, most_s = pace.bounds_s(self._start_s + self.first_output_s)
        self.last_output_s = self.first_output_s + least_s
        return least_s, most_s

    def _learn(self, lease: Lease, usage: TokenUsage | None, *, is_split: bool = False) -> None:
        """An attempt ended well: what it used says how good the router's prediction was.

        Of a split request it says what the first leg's replica had cached."""
        self._used = usage
        if usage is None:
            return
        if not is_split:
            self._forwarding.picker.answered(lease, usage.cached_tokens)
        self._forwarding.traffic.used(lease.endpoint.spec, usage)

    def _settle_turn(self) -> None:
        """The request ended: what it was charged for its turn and did not use goes back."""
        if self._turn_tokens:
            usage = self._used or self._account.usage
            used_tokens = min(ticket_tokens_max, usage.prompt_tokens + usage.completion_tokens)
            self._forwarding.room.settle(self._request.errand, self._turn_tokens, used_tokens)

    def _observe(self, rewriter: StreamRewriter, attempt: Attempt) -> None:
        """Tell the account what passed; without the engine's counts a chunk is a token."""
        if attempt is not self._counted:
            return
        usage = rewriter.usage
        if usage is None and rewriter.content_chunks:
            usage = TokenUsage(self._request.errand.work.prefill_tokens, 0, rewriter.content_chunks)
        if usage is not None and usage != self._account.usage:
            self._account.observe(usage)
