"""The generating routes: a parsed request in, one answer or a stream of chunks out.

Nothing is sent before the engine's first output, so that whatever fails until then is an ordinary
error that callers can retry. After it an error is the stream's last event.
"""

from dataclasses import dataclass

from headrace.base.errors import ClientClosed, HeadraceError
from headrace.engine_server.answer_bodies import AnswerBodies
from headrace.engine_server.choices import Choice
from headrace.engine_server.dialect import prompt_tail
from headrace.engine_server.kv_params import hands_over, prefill_only
from headrace.engine_server.messages import Output
from headrace.engine_server.metrics import Timings
from headrace.engine_server.service import ModelService
from headrace.engine_server.text_stream import TextPiece, TextStream
from headrace.http.asgi import DisconnectScope, EventStream, Header, Receive, Send, send_json
from headrace.protocol.deltas import ContentDelta, Delta
from headrace.protocol.errors import error_event
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.sse import done_event

GeneratingRequest = ChatRequest | CompletionRequest

dropped_header = b"x-headrace-dropped-prompt-tokens"  # what truncate_prompt_tokens cut off


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as it matters here."""

    request_id: str
    cache_salt: str = ""
    traceparent: str | None = None


@dataclass(slots=True)
class Progress:
    """How far an answer got, and when, by the monotonic clock."""

    start_s: float
    first_s: float | None = None  # its first output
    last_s: float = 0.0  # its newest
    outputs: int = 0


class Answer:
    """Answers one request that was parsed."""

    def __init__(
        self,
        service: ModelService,
        timings: Timings,
        request: GeneratingRequest,
        caller: Caller,
        *,
        trace_id: str = "",
    ) -> None:
        """`trace_id` is the request's trace, for exemplars; empty where there is none.

        InvalidRequest if the request hands KV over and cannot."""
        self._service = service
        self._timings = timings
        if hands_over(request):
            has_transfers = service.config.engine.kv_transfers is not None
            request = prefill_only(request, has_transfers=has_transfers)
        self._request = request
        self._caller = caller
        self._trace_id = trace_id
        self.progress = Progress(service.clock.monotonic_s())
        self._choices: list[Choice] = []
        self._last_piece: TextPiece | None = None

    async def send(self, receive: Receive, send: Send) -> None:
        """Answer; raises what failed before the first byte, ClientClosed if the client left."""
        self._service.check_name(self._request.model)
        if self._request.stream:
            await self._send_stream(receive, send)
        else:
            await self._send_whole(receive, send)

    async def _send_whole(self, receive: Receive, send: Send) -> None:
        async with DisconnectScope(receive):
            with await self._open() as text:
                bodies = self._begin(text)
                while self._is_open:
                    await self._next(text)
        self._observe_end()
        assert self._last_piece is not None, "an answer has a last piece"
        body = bodies.whole(self._choices, self._last_piece.output, text.prompt_logprobs)
        await send_json(send, 200, body, self._headers(text))

    async def _send_stream(self, receive: Receive, send: Send) -> None:
        stream: EventStream | None = None
        try:
            async with DisconnectScope(receive):
                with await self._open() as text:
                    stream = EventStream(send, self._headers(text))
                    last_events = await self._send_chunks(text, stream)
        except ClientClosed:
            raise
        except HeadraceError as error:
            if stream is None or not stream.started:
                raise
            last_events = error_event(error)
        self._observe_end()
        await stream.close(last_events)

    async def _send_chunks(self, text: TextStream, stream: EventStream) -> bytes:
        """Send every piece but the last with one write each; the last one's events."""
        bodies = self._begin(text)
        pending = b""
        while self._is_open:
            if pending:
                await stream.write(pending)
            choice, deltas, piece = await self._next(text)
            pending = bodies.chunks(choice, deltas, piece, text.prompt_logprobs)
        assert self._last_piece is not None, "an answer has a last piece"
        return pending + bodies.usage_chunk(self._choices, self._last_piece.output) + done_event

    async def _open(self) -> TextStream:
        caller = self._caller
        return await self._service.open(self._request, caller.request_id, caller.cache_salt)

    def _begin(self, text: TextStream) -> AnswerBodies:
        """Make the choices, each with its parser."""
        service, request = self._service, self._request
        bodies = AnswerBodies(
            request,
            tokenizer=service.tokenizer,
            dialect=service.dialect,
            request_id=self._caller.request_id,
            clock=service.clock,
            prompts=text.prompts,
        )
        per_prompt = request.sequences_count // len(text.prompts)
        shows_reasoning = isinstance(request, CompletionRequest) or (
            request.include_reasoning is not False
        )
        for prompt in text.prompts:
            tail = prompt_tail(service.tokenizer, prompt.token_ids)
            self._choices += [
                Choice(
                    len(self._choices) + number,
                    bodies.answer_id,
                    service.dialect.parser(request, tail),
                    shows_reasoning,
                )
                for number in range(per_prompt)
            ]
        return bodies

    @property
    def last_output(self) -> Output | None:
        """What the engine said last; None if it said nothing."""
        return None if self._last_piece is None else self._last_piece.output

    @property
    def _is_open(self) -> bool:
        return any(choice.finish_reason is None for choice in self._choices)

    async def _next(self, text: TextStream) -> tuple[Choice, list[Delta], TextPiece]:
        """The next piece, taken in by its choice."""
        while True:
            piece = await text.next()
            choice = self._choices[piece.choice]
            if choice.finish_reason is None:  # otherwise it was ended here before the engine knew
                break
        self._observe_piece()
        self._last_piece = piece
        deltas = choice.add(piece)
        if piece.finish_reason is None and choice.finish_reason is not None:
            text.end(piece.choice)
        if piece.tokens and not deltas:
            deltas = [ContentDelta("")]  # to carry the tokens' log-probabilities
        return choice, deltas, piece

    def _observe_piece(self) -> None:
        now_s = self._service.clock.monotonic_s()
        progress = self.progress
        if progress.first_s is None:
            progress.first_s = now_s
            self._timings.first_token_s.observe(now_s - progress.start_s, self._trace_id)
        else:
            self._timings.inter_token_s.observe(now_s - progress.last_s, self._trace_id)
        progress.last_s = now_s
        progress.outputs += 1

    def _observe_end(self) -> None:
        duration_s = self._service.clock.monotonic_s() - self.progress.start_s
        self._timings.request_s.observe(duration_s, self._trace_id)

    def _headers(self, text: TextStream) -> list[Header]:
        headers = [(b"x-request-id", self._caller.request_id.encode())]
        dropped = sum(prompt.dropped_count for prompt in text.prompts)
        if dropped:
            headers.append((dropped_header, b"%d" % dropped))
        return headers
