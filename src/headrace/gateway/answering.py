"""One admitted request's answer on its way out, and its settlement before the last byte.

    whole    JSON, which goes out once it is settled
    stream   events as they come; the end marker waits for the settlement
    relay    what is not ours to read

Whatever breaks is settled here too, by what the engine says of it; `Generation` settles in
`finally` what this process was stopped in.
"""

from headrace.base.errors import HeadraceError
from headrace.gateway.access_log import AccessRecord
from headrace.gateway.account import Account
from headrace.gateway.deadlines import CallerTime
from headrace.gateway.draining import Rest
from headrace.gateway.endings import outcome_of
from headrace.gateway.exchange import Exchange
from headrace.gateway.relay import Relay, RelayedAnswer
from headrace.gateway.services import GenerationServices
from headrace.http.asgi import EventStream, Header, Receive, Send, send_json
from headrace.ledger.reservation import Outcome
from headrace.observability.tracing import RequestTrace
from headrace.protocol.sse import done_event

fallback_header = b"x-headrace-fallback"  # the model that answered in place of the one asked for


class Answering:
    """The answers of one request, which one model after the other may be asked for."""

    def __init__(
        self,
        services: GenerationServices,
        record: AccessRecord,
        time: CallerTime,
        trace: RequestTrace | None,
    ) -> None:
        self._services = services
        self._record = record
        self._time = time
        self._trace = trace
        self.out: EventStream | None = None  # a stream's client, who may know of it already

    async def answer(
        self,
        exchange: Exchange,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
        *,
        streams: bool,
    ) -> None:
        """Send the answer and settle; raises what went wrong, once that is settled."""
        if isinstance(exchange, Relay):
            await self._relay(exchange, account, headers, receive, send)
        elif streams:
            await self._stream(exchange, account, headers, receive, send)
        else:
            await self._whole(exchange, account, headers, receive, send)

    def finish_without_caller(self, exchange: Exchange, rest: Rest, account: Account) -> None:
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

    async def _whole(
        self,
        exchange: Exchange,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            async with self._time.bounded(receive):
                answer = await exchange.whole()
        except HeadraceError as error:
            await self._settle_early(exchange, account, outcome_of(error))
            raise
        if answer.usage is None:
            account.observe(exchange.estimate(answer.body))
            await self._settle_early(exchange, account, Outcome.FINISHED)
        else:
            account.settle(Outcome.FINISHED, answer.usage, exact=True)
            await self._durable(account)
        self._record.status = 200
        await send_json(send, 200, answer.body, headers + exchange.hedge_headers)

    async def _stream(
        self,
        exchange: Exchange,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        if self.out is not None and self.out.started:  # by a comment, of a model that failed
            out = self.out
            out.add_headers(header for header in headers if header[0] == fallback_header)
        else:
            out = self.out = EventStream(send, headers)
        try:
            async with self._time.bounded(receive):
                exact = await exchange.stream(out)
        except HeadraceError as error:
            await self._settle_early(exchange, account, outcome_of(error))
            raise
        if exact:
            account.settle(Outcome.FINISHED, exact=True)
            await self._durable(account)
        else:
            await self._settle_early(exchange, account, Outcome.FINISHED)
        self._record.status = 200
        await out.close(done_event)

    async def _relay(
        self,
        exchange: Relay,
        account: Account,
        headers: list[Header],
        receive: Receive,
        send: Send,
    ) -> None:
        out = RelayedAnswer(send, headers)
        try:
            async with self._time.bounded(receive):
                usage = await exchange.relay(out)
                account.units = exchange.units_of(account.units)
        except HeadraceError as error:
            account.units = exchange.units_of(account.units)
            await self._settle_early(exchange, account, outcome_of(error))
            if not out.started:
                raise
            self._record.error = error.code
            return  # without an end: the client sees that the answer broke off
        is_told = usage is not None
        account.settle(Outcome.FINISHED, usage, exact=is_told, tokens_told=is_told)
        await self._durable(account)
        self._record.status = 200
        await out.close()

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
