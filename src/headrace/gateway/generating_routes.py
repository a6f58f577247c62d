"""The routes that cost tokens: read, generate, answer, once for each `Idempotency-Key`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from headrace.base.errors import ClientClosed, HeadraceError
from headrace.gateway import idempotency
from headrace.gateway.asked import Asked, Asking, GeneratingApi
from headrace.gateway.deadlines import deadline_of
from headrace.gateway.generate import Generation
from headrace.gateway.joining import Keyed
from headrace.gateway.metering import Metering
from headrace.gateway.priorities import priority_of
from headrace.gateway.replay_claims import charge_digest_of, digest_of
from headrace.gateway.route_table import Call, ErrorBody, Handler, Route, answer_error
from headrace.gateway.state import GatewayState
from headrace.gateway.traces import begin, end
from headrace.http.asgi import Receive, Send, header, read_body
from headrace.ledger.reservation import Outcome
from headrace.observability.tracing import RequestTrace
from headrace.protocol.errors import error_body
from headrace.spec.priority import Priority

body_bytes_max = 10 * 1024 * 1024


class Taken(NamedTuple):
    """A request as it came: what it asks, what it says of its priority, and what it is known by."""

    asked: Asked
    fingerprint: Callable[[], bytes]  # of all that it says
    body: bytes = b""  # JSON, where it is


Take = Callable[[Call], Awaitable[Taken]]  # InvalidRequest names what is wrong


def take_body(api: GeneratingApi) -> Take:
    """How a request of an API is taken: its body whole, and read."""

    async def take(call: Call) -> Taken:
        body = await read_body(call.receive, body_bytes_max)
        asked = await api.read(Asking(body, call.record.request_id, call.principal))
        return Taken(asked, lambda: idempotency.fingerprint_of(api.path, body), body)

    return take


class GeneratingRoutes:
    """One handler for each API."""

    def __init__(
        self,
        state: GatewayState,
        apis: Iterable[GeneratingApi],
        takes: Mapping[str, Take] = {},
    ) -> None:
        """`takes` are routes whose requests are taken in their own way, by path."""
        self._state = state
        self._apis = tuple(apis)
        self._takes = takes

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routes."""
        return (
            *(
                Route(
                    api.path,
                    "POST",
                    self._handler(take_body(api), api.error_body),
                    error_body=api.error_body,
                )
                for api in self._apis
            ),
            *(
                Route(path, "POST", self._handler(take, error_body))
                for path, take in self._takes.items()
            ),
        )

    def _handler(self, take: Take, shape: ErrorBody) -> Handler:
        async def handle(call: Call) -> None:
            tracer = self._state.tracer
            if tracer is None:  # nearly always
                await answer(call, None)
                return
            trace = begin(tracer, call)
            try:
                await answer(call, trace)
            finally:
                end(trace, call.record)

        async def answer(call: Call, trace: RequestTrace | None) -> None:
            state, generation = self._state, None
            snapshot, record = state.follower.snapshot, call.record
            try:
                asked, fingerprint, body = await take(call)
                with asked.held():
                    key_digest = claim_digest(call)
                    generation = Generation(
                        state.services,
                        call.principal,
                        await state.follower.snapshot_with(asked.request.model),
                        record,
                        priority_of(call.scope, body, call.principal.tenant),
                        deadline_s=deadline_of(call.scope),
                        trace=trace,
                        key_digest=key_digest and charge_digest_of(key_digest, fingerprint()),
                    )
                    if may_have_been_answered(call, asked):
                        await self._answer_once(asked, generation, fingerprint(), call)
                    else:
                        await generation.answer(asked, call.receive, asked.translated(call.send))
            except ClientClosed:
                raise
            except HeadraceError as error:
                if generation is None:  # what came is no request of any model
                    standard = Priority.STANDARD
                    early = Generation(state.services, call.principal, snapshot, record, standard)
                    extra = early.standing_headers_of(None)
                else:
                    extra = generation.standing_headers()
                await answer_error(call.send, record, error, extra, shape)

        return handle

    async def _answer_once(
        self, asked: Asked, generation: Generation, fingerprint: bytes, call: Call
    ) -> None:
        """Answer a request that may be answered without running it."""
        is_gone = False

        async def make(receive: Receive, send: Send) -> bool:
            try:
                with asked.held():
                    await generation.answer(asked, receive, asked.translated(send))
                return call.record.outcome == Outcome.FINISHED.value
            finally:
                if is_gone:  # its line was written when its connection ended, without an outcome
                    self._state.access_log.write(call.record)

        key, digest = replay_key(call, fingerprint), claim_digest(call)
        standing = partial(generation.standing_headers_of, asked.request.model)
        keyed = None
        if digest is not None:
            keyed = Keyed(
                digest=digest,
                fingerprint=fingerprint,
                record=call.record,
                streams=bool(asked.request.stream) and asked.metering is not Metering.RELAYS,
                translated=asked.translated,
                left=generation.left,
                standing=standing,
            )
        try:
            await self._state.replays.answer(
                key,
                fingerprint,
                make,
                call.receive,
                call.send,
                standing=standing,
                keyed=keyed,
            )
            call.record.status = 200
        finally:
            is_gone = True


def has_key(call: Call) -> bool:
    """Whether the caller chose an `Idempotency-Key`."""
    return header(call.scope, idempotency.header_name) is not None


def claim_digest(call: Call) -> str | None:
    """What the caller's `Idempotency-Key` is claimed under, if there is one."""
    key = header(call.scope, idempotency.header_name)
    return None if key is None else digest_of(call.principal.key.id, key)


def may_have_been_answered(call: Call, asked: Asked) -> bool:
    """Whether to look for an answer: there is an `Idempotency-Key`, or the project caches."""
    if has_key(call):
        return True
    principal = call.principal
    return principal.project.caches_answers and principal.may_use(asked.request.model)


def replay_key(call: Call, fingerprint: bytes) -> idempotency.ReplayKey:
    """Under what an answer may be found: the caller's key, or in the project the request itself."""
    key = header(call.scope, idempotency.header_name)
    if key is not None:
        return idempotency.ReplayKey(call.principal.key.id, key)
    return idempotency.ReplayKey(call.principal.project.id, fingerprint.hex())
