"""A generating request's life: resolve, admit, exchange, settle, answer.

Whatever happens between admission and the end, `finally` finds the account settled or settles it.
The last byte goes out after the settlement is on stable storage. Where no replica of the model
can answer, the model's fallbacks are asked, each with a reservation of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace

from headrace.base.errors import (
    ClientClosed,
    HeadraceError,
    Unavailable,
    UpstreamFailed,
)
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.account import Account
from headrace.gateway.admission import expected_output_tokens
from headrace.gateway.admit import Admitted, Admitter, Books, Turn
from headrace.gateway.asked import Asked, prefill_tokens_of
from headrace.gateway.borne import borne_reservation
from headrace.gateway.draining import Rest
from headrace.gateway.endings import CallerDeadline, caller_deadline, outcome_of
from headrace.gateway.exchange import Exchange
from headrace.gateway.forwarding import EngineRequest
from headrace.gateway.goodput import is_good
from headrace.gateway.images import no_images, takers_of
from headrace.gateway.metering import Metering
from headrace.gateway.needs import unable_ids
from headrace.gateway.prompt_beginnings import beginnings_of
from headrace.gateway.relay import Relay, RelayedAnswer
from headrace.gateway.services import GenerationServices
from headrace.gateway.snapshot import Principal, ServedModel, Snapshot
from headrace.gateway.split import may_split
from headrace.gateway.upstream import cache_salt, engine_body
from headrace.gateway.waiting_room import Errand
from headrace.http.asgi import DisconnectScope, EventStream, Header, Receive, Send, send_json
from headrace.ledger.reservation import Outcome
from headrace.observability.tracing import RequestTrace
from headrace.protocol.errors import error_event
from headrace.protocol.sse import done_event
from headrace.router.lease import Work
from headrace.spec.priority import Priority

fallback_header = b"x-headrace-fallback"  # the model that answered in place of the one asked for


class Generation:
    """One request that was authenticated and whose body is here."""

    def __init__(
        self,
        services: GenerationServices,
        principal: Principal,
        snapshot: Snapshot,
        record: AccessRecord,
        priority: Priority,
        *,
        deadline_s: float | None = None,
        trace: RequestTrace | None = None,
        key_digest: str | None = None,
        is_cut_by_us: Callable[[], bool] = lambda: False,
    ) -> None:
        """`deadline_s` is how long the caller waits for the whole answer, `key_digest` what its
        `Idempotency-Key` is charged under, `is_cut_by_us` whether this gateway ends what its
        clients still want."""
        self._key_digest = key_digest
        self._is_cut_by_us = is_cut_by_us
        self._trace = trace
        self._services = services
        self._principal = principal
        self._record = record
        self._priority = priority
        self._deadline_s = deadline_s
        self._start_s = services.clock.monotonic_s()
        books = Books(
            services.meter,
            services.admission,
            services.contexts,
            services.clock,
            services.counter,
            services.leases,
            services.region,
        )
        self._admitter = Admitter(books, principal, snapshot, priority)
        self._snapshot = snapshot
        self._out: EventStream | None = None  # a stream's client, who may know of it already

    def standing_headers(self) -> list[Header]:
        """`x-ratelimit-*` as of now; none where no limit of the minute counts."""
        return self._admitter.standing_headers()

    def standing_headers_of(self, model: str | None) -> list[Header]:
        """The same for a request that is not admitted; None: it names no model."""
        served = None
        if model is not None:
            with suppress(HeadraceError):
                served = self._admitter.resolve(model)
        self._admitter.look(served)
        return self._admitter.standing_headers()

    async def answer(self, asked: Asked, receive: Receive, send: Send) -> None:
        """Answer; raises what failed before the first byte, ClientClosed if the client left."""
        served = self._admitter.resolve(asked.request.model)
        candidates = [served, *self._admitter.fallbacks(served)]
        if asked.images:
            candidates, asked = await self._seeing(candidates, asked)
        try:
            await self._answer_by_any(candidates, asked, receive, send)
        except HeadraceError as error:
            out = self._out
            if out is None or not out.started or isinstance(error, ClientClosed):
                raise
            self._record.error = error.code
            self._record.status = 200
            await out.close(error_event(error))

    async def _answer_by_any(
        self, candidates: list[ServedModel], asked: Asked, receive: Receive, send: Send
    ) -> None:
        """Answer by the first model that can; by none any more once the client has an event."""
        for number, candidate in enumerate(candidates):
            is_last = number + 1 == len(candidates)
            turn = Turn(candidate, number, is_last=is_last)
            try:
                await self._answer_by(turn, asked, receive, send)
            except (Unavailable, UpstreamFailed):
                left_s = self._left_s
                is_late = left_s is not None and left_s <= 0.0
                has_events = self._out is not None and self._out.has_events
                if is_last or is_late or has_events:
                    raise
                self._services.counters.fallbacks += 1
            else:
                return

    async def _seeing(
        self, candidates: list[ServedModel], asked: Asked
    ) -> tuple[list[ServedModel], Asked]:
        """The models that take images, and the request with its images in it."""
        endpoints = self._snapshot.endpoints
        able = [served for served in candidates if takers_of(served, endpoints).able]
        if not able:
            raise no_images(asked.images[0])
        return able, replace(asked, body=await self._services.images.inlined(asked))

    async def _answer_by(self, turn: Turn, asked: Asked, receive: Receive, send: Send) -> None:
        """Answer by one model; the n-th fallback's reservation is `<request id>.n`."""
        served, number = turn.served, turn.number
        name = served.name
        request_id = self._record.request_id
        headers: list[Header] = [(b"x-request-id", request_id.encode())]
        if number:
            request_id = f"{request_id}.{number}"
            headers.append((fallback_header, name.encode()))
        self._record.model = name
        if self._trace is not None:
            self._trace.phase("admission")
        admitted = await self._admitter.admit(request_id, asked, served, self._key_digest)
        headers += admitted.headers
        account = admitted.account
        engine_request = self._engine_request(asked, request_id, turn, admitted)
        kind = Relay if asked.metering is Metering.RELAYS else Exchange
        exchange = kind(self._services.forwarding, engine_request, account)
        try:
            if isinstance(exchange, Relay):
                await self._answer_relay(exchange, account, headers, receive, send)
            elif asked.request.stream:
                await self._answer_stream(exchange, account, headers, receive, send)
            else:
                await self._answer_whole(exchange, account, headers, receive, send)
        finally:
            if exchange.rest is not None:
                self._finish_without_caller(exchange, exchange.rest, account)
            else:
                account.settle(Outcome.FAILED)  # only if nothing else did: this process is stopping
                self._note(account, exchange)
                self._judge(served, account, exchange, streams=bool(asked.request.stream))

    def _finish_without_caller(self, exchange: Exchange, rest: Rest, account: Account) -> None:
        """The engine works on to its end: what that costs is settled when it is known."""

        async def settle(result: object) -> None:
            usage, is_relay = exchange.used(result), isinstance(exchange, Relay)
            account.units = exchange.units_of(account.units)
            is_told = usage is not None or not is_relay
            account.settle(rest.outcome, usage, exact=usage is not None, tokens_told=is_told)
            self._services.counters.settled(rest.outcome, account.usage, account.source)
            await self._durable(account)

        record = self._record
        record.outcome, record.attempts = rest.outcome.value, exchange.attempts
        record.endpoint_id = exchange.endpoint_id or None
        self._services.forwarding.drains.finish(rest, settle)

    def _engine_request(
        self,
        asked: Asked,
        request_id: str,
        turn: Turn,
        admitted: Admitted,
    ) -> EngineRequest:
        served = turn.served
        request, output_limit = asked.request, admitted.output_limit
        work = self._work(asked, served, output_limit)
        salt = cache_salt(self._services.pepper, self._principal.tenant.id)
        self._services.learner.note(asked, served, work.prefix, salt)
        self._services.forwarding.traffic.arrived(
            served.model.name, work.prefill_tokens + work.decode_tokens
        )
        return EngineRequest(
            path=asked.path,
            request_id=request_id,
            errand=Errand(
                model_name=served.model.name,
                tenant_id=self._principal.tenant.id,
                priority=self._priority,
                pools=served.pools,
                work=work,
                wakes=served.wakes,
                unable_ids=unable_ids(asked, served, self._snapshot.endpoints),
                trace_id=self._record.trace_id or "",
                is_last=turn.is_last,
            ),
            answer_name=served.name,
            cache_salt=salt,
            body_for=lambda spec, extra_fields: (
                asked.form.body(spec.served_model_name)
                if asked.form is not None
                else engine_body(asked.body, spec, extra_fields, output_limit, served.adapter)
            ),
            streams=bool(request.stream),
            usage_chunk=request.wants_usage_chunk,
            usage_in_every_chunk=request.wants_usage_in_every_chunk,
            metering=asked.metering,
            trace=self._trace,
            may_split=lambda: may_split(asked),
            borne_account=lambda suffix: self._borne_account(admitted.account, suffix),
        )

    def _borne_account(self, account: Account, suffix: str) -> Account:
        """What an attempt of a request may use that the platform bears."""
        services = self._services
        reservation = borne_reservation(services.meter, account.reservation, suffix)
        return Account(services.meter, reservation, services.clock)

    def _work(self, asked: Asked, served: ServedModel, output_limit: int | None) -> Work:
        """What the router may know: sizes, the prompt's beginnings, and what it goes with."""
        request = asked.request
        limit = output_limit or request.output_limit or expected_output_tokens
        tenant_id = self._principal.tenant.id
        session = request.prompt_cache_key
        return Work(
            prefill_tokens=prefill_tokens_of(asked),
            decode_tokens=min(limit, expected_output_tokens),
            prefix=beginnings_of(asked, served, tenant_id),
            session=f"{tenant_id} {session}" if session else "",
            request_id=self._record.request_id,
            adapter=served.adapter,
        )

    async def _answer_whole(
        self,
        exchange: Exchange,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            async with self._bounded(receive):
                answer = await exchange.whole()
        except HeadraceError as error:
            await self._settle_early(exchange, account, self._outcome_of(error))
            raise
        if answer.usage is None:
            account.observe(exchange.estimate(answer.body))
            await self._settle_early(exchange, account, Outcome.FINISHED)
        else:
            account.settle(Outcome.FINISHED, answer.usage, exact=True)
            await self._durable(account)
        self._record.status = 200
        await send_json(send, 200, answer.body, headers + exchange.hedge_headers)

    async def _answer_stream(
        self,
        exchange: Exchange,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        if self._out is not None and self._out.started:  # by a comment, of a model that failed
            out = self._out
            out.add_headers(header for header in headers if header[0] == fallback_header)
        else:
            out = self._out = EventStream(send, headers)
        try:
            async with self._bounded(receive):
                exact = await exchange.stream(out)
        except HeadraceError as error:
            await self._settle_early(exchange, account, self._outcome_of(error))
            raise
        if exact:
            account.settle(Outcome.FINISHED, exact=True)
            await self._durable(account)
        else:
            await self._settle_early(exchange, account, Outcome.FINISHED)
        self._record.status = 200
        await out.close(done_event)

    async def _answer_relay(
        self,
        exchange: Relay,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        out = RelayedAnswer(send, headers)
        try:
            async with self._bounded(receive):
                usage = await exchange.relay(out)
                account.units = exchange.units_of(account.units)
        except HeadraceError as error:
            account.units = exchange.units_of(account.units)
            await self._settle_early(exchange, account, self._outcome_of(error))
            if not out.started:
                raise
            self._record.error = error.code
            return  # without an end: the client sees that the answer broke off
        is_told = usage is not None
        account.settle(Outcome.FINISHED, usage, exact=is_told, tokens_told=is_told)
        await self._durable(account)
        self._record.status = 200
        await out.close()

    def _bounded(self, receive: Receive) -> AbstractAsyncContextManager[object]:
        """The block ends with ClientClosed when the client leaves, CallerDeadline at its limit."""
        if self._deadline_s is None:  # nearly always
            return DisconnectScope(receive)
        return self._until_deadline(receive)

    @property
    def _left_s(self) -> float | None:
        """What is left of the caller's time, whoever is asked; None: it sets no limit."""
        if self._deadline_s is None:
            return None
        return self._deadline_s - (self._services.clock.monotonic_s() - self._start_s)

    def left(self) -> CallerDeadline | float | None:
        """What is left of the caller's time, or that it is over; None: it sets no limit."""
        left_s = self._left_s
        if left_s is None or self._deadline_s is None or left_s > 0.0:
            return left_s
        return caller_deadline(self._deadline_s)

    @asynccontextmanager
    async def _until_deadline(self, receive: Receive) -> AsyncIterator[None]:
        assert self._deadline_s is not None, "there is a limit, or nothing to wait for"
        try:
            async with DisconnectScope(receive), asyncio.timeout(self._left_s):
                yield
        except TimeoutError:
            raise caller_deadline(self._deadline_s) from None

    def _outcome_of(self, error: HeadraceError) -> Outcome:
        """As `outcome_of`; a client that could still come back to its key has not left it."""
        if isinstance(error, ClientClosed) and self._is_cut_by_us():
            return Outcome.FAILED
        return outcome_of(error)

    async def _settle_early(self, exchange: Exchange, account: Account, outcome: Outcome) -> None:
        """Settle by the engine's record of the request, or by what passed if it has none.

        Of a sound or an image that was broken off nothing that could be counted passed."""
        if exchange.rest is not None:
            exchange.rest.outcome = outcome
            return
        usage = await exchange.final_usage(is_awaited=outcome is not Outcome.ABORTED)
        is_unknown = usage is None and outcome is Outcome.ABORTED and isinstance(exchange, Relay)
        account.settle(outcome, usage, exact=usage is not None, tokens_told=not is_unknown)
        await self._durable(account)

    async def _durable(self, account: Account) -> None:
        if self._trace is not None:
            self._trace.phase("settle", {"headrace.usage.source": account.source.value})
        is_durable = await account.durable()
        if not is_durable:
            self._services.counters.undurable_settlements += 1
        if self._trace is not None:
            self._trace.note({"headrace.settlement.durable": is_durable})

    def _note(self, account: Account, exchange: Exchange) -> None:
        """Count the settlement and put its numbers into the access record."""
        assert account.outcome is not None
        counters, record, usage = self._services.counters, self._record, account.usage
        counters.settled(account.outcome, usage, account.source)
        if account.outcome is Outcome.FINISHED:
            self._services.forwarding.traffic.succeeded()
        record.outcome = account.outcome.value
        record.prompt_tokens = usage.prompt_tokens
        record.cached_tokens = usage.cached_tokens
        record.completion_tokens = usage.completion_tokens
        record.attempts = exchange.attempts
        record.endpoint_id = exchange.endpoint_id or None
        if exchange.first_output_s is not None:
            counters.first_output_s.observe(exchange.first_output_s, record.trace_id or "")
            record.first_output_ms = round(exchange.first_output_s * 1000, 2)

    def _judge(
        self, served: ServedModel, account: Account, exchange: Exchange, *, streams: bool
    ) -> None:
        assert account.outcome is not None
        good = is_good(
            served.model.objectives,
            account.outcome,
            first_output_s=exchange.first_output_s,
            last_output_s=exchange.last_output_s,
            output_tokens=account.usage.completion_tokens,
            streams=streams,
        )
        self._services.counters.judged(served.model.name, account.outcome, good)
