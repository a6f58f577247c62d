"""An answer that passes through as the engine gave it: text, JSON, sound, or events of them.

JSON is read to its end first, so that what it used is settled before the client has it. Anything
else goes on as it comes, and its end waits for the settlement.
"""

from collections.abc import Iterable

import msgspec

from headrace.base.errors import HeadraceError
from headrace.gateway.attempt import Attempt
from headrace.gateway.draining import Out
from headrace.gateway.exchange import Exchange, answer_bytes_max
from headrace.gateway.media_units import ToldUnits, told_units
from headrace.gateway.pace import Pace
from headrace.gateway.reported_usage import ReportedUsage
from headrace.gateway.sending import eject
from headrace.http.asgi import Header, Send
from headrace.http.client import Answer
from headrace.protocol.sse import EventTooLarge, SseDecoder
from headrace.spec.settlements import TokenUsage, UnitCounts

content_type_default = "application/octet-stream"
event_bytes_max = 32 * 1024 * 1024  # of an image in base64; larger ones are not looked at


class UsageOnly(msgspec.Struct):
    """The part of an answer, or of an event, that counts."""

    usage: ReportedUsage | None = None


_usage = msgspec.json.Decoder(UsageOnly)


def usage_of(data: bytes) -> TokenUsage | None:
    """What JSON tells of use; None if it tells nothing, or is none."""
    try:
        usage = _usage.decode(data).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    return usage.tokens() if usage is not None and usage.is_counted else None


class RelayedAnswer:
    """The client's side: its headers go out with the first bytes."""

    def __init__(self, send: Send, headers: list[Header]) -> None:
        self._send = send
        self.headers = headers
        self.started = False

    def add_headers(self, headers: Iterable[Header]) -> None:
        """Send these too, if none were sent yet."""
        self.headers += headers

    async def write(self, data: bytes) -> None:
        """Send a piece; waits while the client's connection is congested."""
        if not self.started:
            self.started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self.headers}
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class Relay(Exchange):
    """The attempts of one request whose answer is not ours to read."""

    _told = ToldUnits()  # by the attempt that answered

    def units_of(self, known: UnitCounts) -> UnitCounts:
        """What the request used besides tokens: what the engine told goes before what was known."""
        return self._told.over(known)

    async def relay(self, out: RelayedAnswer) -> TokenUsage | None:
        """Pass an answer on but for its end; its usage, None if the engine did not tell."""

        async def run(attempt: Attempt) -> TokenUsage | None:
            return await self._attempt_relay(attempt, self._to(attempt, out))

        return await self._with_retries(run)

    async def _attempt_relay(self, attempt: Attempt, out: Out) -> TokenUsage | None:
        timeout_s, pace = self._forwarding.timeouts.whole_s, Pace(self._forwarding.clock)
        async with await self._open(attempt, timeout_s) as answer:
            content_type = answer.header("Content-Type") or content_type_default
            try:
                if content_type.startswith("application/json"):
                    body = await answer.read_all(answer_bytes_max, timeout_s)
                    usage = usage_of(body)
                    self._begin_answer(attempt, out, content_type)
                    self._told = told_units(body)
                    await out.write(body)
                else:
                    usage = await self._pass_on(attempt, answer, out, content_type, pace)
            except HeadraceError:
                eject(self._forwarding, attempt.lease)
                raise
        self._note_last_output(pace)
        self._learn(attempt.lease, usage)
        return usage

    async def _pass_on(
        self,
        attempt: Attempt,
        answer: Answer,
        out: Out,
        content_type: str,
        pace: Pace,
    ) -> TokenUsage | None:
        """Relay piece by piece; events are looked into for what they tell of use."""
        timeouts = self._forwarding.timeouts
        timeout_s = timeouts.first_output_s
        is_events = content_type.startswith("text/event-stream")
        decoder = SseDecoder(event_bytes_max) if is_events else None
        usage: TokenUsage | None = None
        while data := await answer.read_chunk(timeout_s):
            pace.arrived()
            if not attempt.has_output:
                self._begin_answer(attempt, out, content_type)
            if decoder is not None:
                try:
                    events = decoder.feed(data)
                except EventTooLarge:
                    decoder, events = None, []
                for event in events:
                    usage = usage_of(event.data) or usage
                    self._told = self._told.and_event(event.data)
            await pace.write(out, data)
            timeout_s = timeouts.stall_s
        if not attempt.has_output:
            self._begin_answer(attempt, out, content_type)
            await out.write(b"")
        return usage

    def _begin_answer(self, attempt: Attempt, out: Out, content_type: str) -> None:
        self._claim(attempt)
        self._account.has_answered = True
        self._note_first_output(attempt)
        out.add_headers([*self.hedge_headers, (b"content-type", content_type.encode("latin-1"))])
