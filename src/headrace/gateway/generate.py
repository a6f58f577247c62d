"""A generating request's life: parse, resolve, admit, exchange, settle, answer.

Whatever happens between admission and the end, `finally` finds the account settled or settles it.
The last byte goes out after the settlement is on stable storage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.base.errors import ClientClosed, HeadraceError, NotFound, PermissionDenied
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.account import Account
from headrace.gateway.admission import (
    GeneratingRequest,
    bytes_per_token,
    expected_output_tokens,
    token_bounds,
)
from headrace.gateway.contexts import ContextLengths
from headrace.gateway.exchange import EngineRequest, Exchange, Forwarding
from headrace.gateway.limit_headers import limit_headers, limits_of
from headrace.gateway.metrics import GatewayCounters
from headrace.gateway.snapshot import Principal, ServedModel, Snapshot
from headrace.gateway.upstream import cache_salt, engine_body
from headrace.gateway.waiting_room import Errand
from headrace.http.asgi import DisconnectScope, EventStream, Header, Receive, Send, send_json
from headrace.ledger.admission import Admission
from headrace.ledger.limits import Room
from headrace.ledger.meter import Meter
from headrace.ledger.reservation import Outcome
from headrace.ledger.scopes import no_limits, scope_ids
from headrace.protocol.errors import error_event
from headrace.protocol.sse import done_event
from headrace.router.lease import Work
from headrace.router.prompt_prefix import prefix_of_body
from headrace.spec.prices import price_at
from headrace.spec.priority import Priority

output_cap_header = b"x-headrace-max-tokens"  # says what caps an answer without max_tokens


@dataclass(frozen=True, slots=True)
class GenerationServices:
    """What generating requests share."""

    meter: Meter
    admission: Admission
    forwarding: Forwarding
    contexts: ContextLengths
    counters: GatewayCounters
    clock: Clock
    pepper: bytes


class GeneratingRoute(NamedTuple):
    """One generating route: its path at the engine, and the parser of its bodies."""

    path: str
    parse: Callable[[bytes], GeneratingRequest]


class Generation:
    """One request that was authenticated and whose body is here."""

    def __init__(
        self,
        services: GenerationServices,
        principal: Principal,
        snapshot: Snapshot,
        record: AccessRecord,
        priority: Priority,
    ) -> None:
        self._services = services
        self._principal = principal
        self._snapshot = snapshot
        self._record = record
        self._priority = priority
        self._scope_ids: tuple[str, ...] = ()
        self._limits = no_limits

    def standing_headers(self) -> list[Header]:
        """`x-ratelimit-*` as of now; none where no limit of the minute counts."""
        if self._limits is no_limits:
            return []
        return limit_headers(self._services.admission.standing(self._scope_ids, self._limits))

    async def answer(
        self, route: GeneratingRoute, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Answer; raises what failed before the first byte, ClientClosed if the client left."""
        request = route.parse(body)
        served = self._resolve(request.model)
        account, headers, output_limit = self._admit(request, served)
        engine_request = self._engine_request(route, body, request, served, output_limit)
        exchange = Exchange(self._services.forwarding, engine_request, account)
        try:
            if request.stream:
                await self._answer_stream(exchange, account, headers, receive, send)
            else:
                await self._answer_whole(exchange, account, headers, receive, send)
        finally:
            account.settle(Outcome.FAILED)  # only if nothing else did: this process is stopping
            self._note(account, exchange)

    def _resolve(self, name: str) -> ServedModel:
        served = self._snapshot.models.get(name)
        if served is None:
            raise NotFound(
                f"There is no model {name!r}; GET /v1/models lists those of your key.",
                param="model",
            )
        if not self._principal.may_use(name):
            raise PermissionDenied(
                f"This key may not use the model {name!r}; GET /v1/models lists those it may.",
                param="model",
            )
        self._record.model = served.model.name
        return served

    def _admit(
        self, request: GeneratingRequest, served: ServedModel
    ) -> tuple[Account, list[Header], int | None]:
        """The account, the answer's headers, and the output limit to send if we set one."""
        services = self._services
        tenant = self._principal.tenant
        price = price_at(served.price_books, served.model.name, services.clock.wall_s())
        spendable_nanousd = None
        if tenant.credit_floor_nanousd is not None:
            available_nanousd = services.admission.available_nanousd(tenant.id)
            spendable_nanousd = available_nanousd - tenant.credit_floor_nanousd
        room = self._room(served)
        bounds = token_bounds(
            request,
            context_length=served.context_length or services.contexts.longest(served.pools),
            price=price,
            spendable_nanousd=spendable_nanousd,
            room=room,
        )
        reservation = services.meter.reserve(
            request_id=self._record.request_id,
            tenant_id=tenant.id,
            project_id=self._principal.project.id,
            key_id=self._principal.key.id,
            model=served.model.name,
            price=price,
            credit_floor_nanousd=tenant.credit_floor_nanousd,
            prompt_tokens_max=bounds.prompt_tokens_max,
            output_tokens_max=bounds.output_tokens_max,
            limits=self._limits,
        )
        headers: list[Header] = [(b"x-request-id", self._record.request_id.encode())]
        headers += self.standing_headers()
        limit = bounds.output_limit_sent
        if limit is not None:
            headers.append((output_cap_header, b"%d" % limit))
        return Account(services.meter, reservation, services.clock), headers, limit

    def _room(self, served: ServedModel) -> Room:
        """What the limits of the request's scopes leave."""
        principal = self._principal
        self._limits = limits_of(principal, served)
        if self._limits is no_limits:
            return Room()
        self._scope_ids = scope_ids(
            principal.tenant.id, principal.project.id, principal.key.id, served.model.name
        )
        return self._services.admission.room(self._scope_ids, self._limits)

    def _engine_request(
        self,
        route: GeneratingRoute,
        body: bytes,
        request: GeneratingRequest,
        served: ServedModel,
        output_limit: int | None,
    ) -> EngineRequest:
        work = self._work(body, request, served, output_limit)
        self._services.forwarding.traffic.arrived(
            served.model.name, work.prefill_tokens + work.decode_tokens
        )
        return EngineRequest(
            path=route.path,
            request_id=self._record.request_id,
            errand=Errand(
                model_name=served.model.name,
                tenant_id=self._principal.tenant.id,
                priority=self._priority,
                pools=served.pools,
                work=work,
                wakes=served.wakes,
            ),
            cache_salt=cache_salt(self._services.pepper, self._principal.tenant.id),
            body_for=lambda spec, extra_fields: engine_body(
                body, request, spec, extra_fields, output_limit
            ),
            streams=bool(request.stream),
            usage_chunk=request.wants_usage_chunk,
            usage_in_every_chunk=request.wants_usage_in_every_chunk,
        )

    def _work(
        self,
        body: bytes,
        request: GeneratingRequest,
        served: ServedModel,
        output_limit: int | None,
    ) -> Work:
        """What the router may know: sizes, the prompt's beginnings, and what it goes with."""
        limit = output_limit or request.output_limit or expected_output_tokens
        tenant_id = self._principal.tenant.id
        session = request.prompt_cache_key
        return Work(
            prefill_tokens=len(body) // bytes_per_token,
            decode_tokens=min(limit, expected_output_tokens),
            prefix=prefix_of_body(body, (tenant_id, served.model.name)),
            session=f"{tenant_id} {session}" if session else "",
            request_id=self._record.request_id,
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
            async with DisconnectScope(receive):
                answer = await exchange.whole()
        except ClientClosed:
            await self._settle_early(exchange, account, Outcome.ABORTED)
            raise
        except HeadraceError:
            await self._settle_early(exchange, account, Outcome.FAILED)
            raise
        if answer.usage is None:
            account.observe(exchange.estimate(answer.body))
            await self._settle_early(exchange, account, Outcome.FINISHED)
        else:
            account.settle(Outcome.FINISHED, answer.usage, exact=True)
            await self._durable(account)
        self._record.status = 200
        await send_json(send, 200, answer.body, headers)

    async def _answer_stream(
        self,
        exchange: Exchange,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        out = EventStream(send, headers)
        last_event = done_event
        try:
            async with DisconnectScope(receive):
                exact = await exchange.stream(out)
        except ClientClosed:
            await self._settle_early(exchange, account, Outcome.ABORTED)
            raise
        except HeadraceError as error:
            await self._settle_early(exchange, account, Outcome.FAILED)
            if not out.started:
                raise
            self._record.error = error.code
            last_event = error_event(error)
        else:
            if exact:
                account.settle(Outcome.FINISHED, exact=True)
                await self._durable(account)
            else:
                await self._settle_early(exchange, account, Outcome.FINISHED)
        self._record.status = 200
        await out.close(last_event)

    async def _settle_early(self, exchange: Exchange, account: Account, outcome: Outcome) -> None:
        """Settle by the engine's record of the request, or by what passed if it has none."""
        usage = await exchange.final_usage()
        account.settle(outcome, usage, exact=usage is not None)
        await self._durable(account)

    async def _durable(self, account: Account) -> None:
        if not await account.durable():
            self._services.counters.undurable_settlements += 1

    def _note(self, account: Account, exchange: Exchange) -> None:
        """Count the settlement and put its numbers into the access record."""
        assert account.outcome is not None
        counters, record, usage = self._services.counters, self._record, account.usage
        counters.settled(account.outcome, usage, account.source)
        record.outcome = account.outcome.value
        record.prompt_tokens = usage.prompt_tokens
        record.cached_tokens = usage.cached_tokens
        record.completion_tokens = usage.completion_tokens
        record.attempts = exchange.attempts
        record.endpoint_id = exchange.endpoint_id or None
        if exchange.first_output_s is not None:
            counters.first_output_s.observe(exchange.first_output_s)
            record.first_output_ms = round(exchange.first_output_s * 1000, 2)
