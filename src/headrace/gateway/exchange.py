"""One admitted request to an engine and back: what becomes of its answer; see `attempts`.

An unstreamed answer goes out whole, so it may be retried until it is complete. A stream may be
until its first event; heartbeats are none.
"""

from headrace.adapters.registry import find_adapter
from headrace.base.errors import (
    HeadraceError,
    UpstreamFailed,
)
from headrace.gateway.account import Account
from headrace.gateway.attempt import Attempt
from headrace.gateway.attempts import Attempts
from headrace.gateway.borne import usage_before_refusal
from headrace.gateway.context_room import bytes_per_token
from headrace.gateway.draining import Out
from headrace.gateway.forwarding import EngineRequest, Forwarding
from headrace.gateway.heartbeat import Heartbeat
from headrace.gateway.metering import Metering
from headrace.gateway.pace import Pace
from headrace.gateway.rewriter import StreamRewriter, WholeRewrite, rewrite_whole, said_bytes
from headrace.gateway.sending import eject, note_failure, send
from headrace.gateway.upstream import (
    ask_usage,
    ask_usage_patiently,
    stream_error,
)
from headrace.http.asgi import EventStream
from headrace.http.client import Answer
from headrace.router.lease import Lease
from headrace.spec.settlements import TokenUsage, UnitCounts

answer_bytes_max = 64 * 1024 * 1024  # of an unstreamed answer: a whole context as text


class Exchange(Attempts):
    """A request whose answer is text, whole or as events."""

    def __init__(self, forwarding: Forwarding, request: EngineRequest, account: Account) -> None:
        super().__init__(forwarding, request, account)
        self._start_s = forwarding.clock.monotonic_s()
        self.first_output_s: float | None = None  # seconds from the start
        # The same, of a stream that ended well, less what its reader held up since the first.
        self.last_output_s: float | None = None

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
    def _created(self) -> int:
        """When an answer is made, for engines that do not say it; Unix seconds."""
        return int(self._forwarding.clock.wall_s())

    def estimate(self, body: bytes) -> TokenUsage:
        """A guess at what an unstreamed answer used, for engines that never tell."""
        prompt_tokens = self._request.errand.work.prefill_tokens
        guess = TokenUsage(prompt_tokens, 0, said_bytes(body) // bytes_per_token)
        return self._request.metering.of(guess)

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

    def _observe(self, rewriter: StreamRewriter, attempt: Attempt) -> None:
        """Tell the account what passed; without the engine's counts a chunk is a token."""
        if attempt is not self._counted:
            return
        usage = rewriter.usage
        if usage is None and rewriter.content_chunks:
            usage = TokenUsage(self._request.errand.work.prefill_tokens, 0, rewriter.content_chunks)
        if usage is not None and usage != self._account.usage:
            self._account.observe(usage)
