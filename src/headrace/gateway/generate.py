"""A generating request's life: resolve, admit, exchange, settle, answer (`answering`).

Whatever happens between admission and the end, `finally` finds the account settled or settles it.
The last byte goes out after the settlement is on stable storage. Where no replica of the model
can answer, the model's fallbacks are asked, each with a reservation of its own. One that refuses
the request, for its limits or its context, is passed over: that is no answer to what was asked.
"""

from contextlib import suppress
from dataclasses import replace

from headrace.base.errors import (
    ClientClosed,
    HeadraceError,
    Unavailable,
    UpstreamFailed,
)
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.account import Account
from headrace.gateway.admission import expected_output_of
from headrace.gateway.admit import Admitted, Admitter, Books, Turn
from headrace.gateway.answering import Answering, fallback_header
from headrace.gateway.asked import Asked, prefill_tokens_of
from headrace.gateway.borne import borne_reservation
from headrace.gateway.deadlines import CallerTime
from headrace.gateway.endings import CallerDeadline, callers_doing
from headrace.gateway.exchange import Exchange
from headrace.gateway.forwarding import EngineRequest
from headrace.gateway.goodput import is_good
from headrace.gateway.images import no_images, takers_of
from headrace.gateway.metering import Metering
from headrace.gateway.needs import unable_ids
from headrace.gateway.prompt_beginnings import beginnings_of
from headrace.gateway.relay import Relay
from headrace.gateway.services import GenerationServices
from headrace.gateway.snapshot import Principal, ServedModel, Snapshot
from headrace.gateway.split import may_split
from headrace.gateway.upstream import cache_salt, engine_body
from headrace.gateway.waiting_room import Errand
from headrace.http.asgi import Header, Receive, Send, ServerCloses
from headrace.ledger.reservation import Outcome
from headrace.observability.tracing import RequestTrace
from headrace.protocol.errors import error_event
from headrace.router.lease import Work
from headrace.spec.priority import Priority


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
    ) -> None:
        """`deadline_s` is how long the caller waits for the whole answer, `key_digest` what its
        `Idempotency-Key` is charged under."""
        self._key_digest = key_digest
        self._trace = trace
        self._services = services
        self._principal = principal
        self._record = record
        self._priority = priority
        self._time = CallerTime(deadline_s, services.clock)
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
        self._answering = Answering(services, record, self._time, trace)

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
            out = self._answering.out
            if out is None or not out.started or isinstance(error, ClientClosed):
                raise
            self._record.error = error.code
            self._record.status = 200
            await out.close(error_event(error))

    def left(self) -> CallerDeadline | float | None:
        """What is left of the caller's time, or that it is over; None: it sets no limit."""
        return self._time.left()

    async def _answer_by_any(
        self, candidates: list[ServedModel], asked: Asked, receive: Receive, send: Send
    ) -> None:
        """Answer by the first model that can; by none any more once the client has an event.

        Where none can, raises why the first that was asked could not."""
        failure: HeadraceError | None = None
        for number, candidate in enumerate(candidates):
            is_last = number + 1 == len(candidates)
            turn = Turn(candidate, number, is_last=is_last)
            try:
                await self._answer_by(turn, asked, receive, send)
            except HeadraceError as error:
                if not self._may_pass_over(error, number):
                    raise
                failure = failure or error
                if not is_last:
                    self._services.counters.fallbacks += 1
            else:
                return
        assert failure is not None, "there is a model to ask"
        self._admitter.look(candidates[0])
        raise failure

    def _may_pass_over(self, error: HeadraceError, number: int) -> bool:
        """Whether the next model may be asked, or the first one's failure be told.

        Of the first that is only where its replicas broke; a fallback may refuse, too."""
        out = self._answering.out
        if out is not None and out.has_events:
            return False
        if isinstance(error, (*callers_doing, ServerCloses)):
            return False
        if isinstance(self._time.left(), CallerDeadline):
            return False
        has_broken = isinstance(error, Unavailable | UpstreamFailed)
        return has_broken or (number > 0 and error.http_status < 500)

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
        try:
            engine_request = self._engine_request(asked, request_id, turn, admitted)
        except BaseException:
            account.settle(Outcome.FAILED)  # what it held is free again
            raise
        kind = Relay if asked.metering is Metering.RELAYS else Exchange
        exchange = kind(self._services.forwarding, engine_request, account)
        streams = bool(asked.request.stream)
        try:
            await self._answering.answer(exchange, account, headers, receive, send, streams=streams)
        finally:
            if exchange.rest is not None:
                self._answering.finish_without_caller(exchange, exchange.rest, account)
            else:
                account.settle(Outcome.FAILED)  # only if nothing else did: this process is stopping
                self._note(account, exchange)
                self._judge(served, account, exchange, streams=streams)

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
        tenant_id = self._principal.tenant.id
        session = request.prompt_cache_key
        return Work(
            prefill_tokens=prefill_tokens_of(asked),
            decode_tokens=expected_output_of(output_limit, request.output_limit),
            prefix=beginnings_of(asked, served, tenant_id),
            session=f"{tenant_id} {session}" if session else "",
            request_id=self._record.request_id,
            adapter=served.adapter,
        )

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
