"""The two generating routes: a request's bytes in, one answer or a stream of chunks out.

Nothing is sent before the engine's first output, so that whatever fails until then is an ordinary
error that callers can retry. After it an error is the stream's last event.
"""

from collections.abc import Sequence

import msgspec

from headrace.base.errors import ClientClosed, HeadraceError, NotFound
from headrace.engine_server.logprobs import PlacedToken, chat_logprobs, text_logprobs
from headrace.engine_server.metrics import Timings
from headrace.engine_server.service import ModelService
from headrace.engine_server.text_stream import TextPiece, TextStream
from headrace.engine_server.usage_log import usage_of
from headrace.http.asgi import DisconnectScope, EventStream, Receive, Send, send_json
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.errors import error_event
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    TextChoice,
    TextCompletion,
    TextLogprobs,
)
from headrace.protocol.sse import done_event

GeneratingRequest = ChatRequest | CompletionRequest

_encode = msgspec.json.Encoder().encode


class Answer:
    """Answers one request that was parsed."""

    def __init__(
        self,
        service: ModelService,
        timings: Timings,
        request: GeneratingRequest,
        request_id: str,
        cache_salt: str,
    ) -> None:
        self._service = service
        self._timings = timings
        self._request = request
        self._request_id = request_id
        self._cache_salt = cache_salt
        self._start_s = self._last_s = service.clock.monotonic_s()
        self._created = int(service.clock.wall_s())
        self._is_chat = isinstance(request, ChatRequest)

    async def send(self, receive: Receive, send: Send) -> None:
        """Answer; raises what failed before the first byte, ClientClosed if the client left."""
        served = self._service.config.served_name
        if self._request.model != served:
            raise NotFound(
                f"This server has no model {self._request.model!r}; it serves {served!r}.",
                param="model",
            )
        if self._request.stream:
            await self._send_stream(receive, send)
        else:
            await self._send_whole(receive, send)

    async def _send_whole(self, receive: Receive, send: Send) -> None:
        pieces: list[str] = []
        tokens: list[PlacedToken] = []
        async with DisconnectScope(receive):
            with await self._open() as text:
                piece = await self._first(text)
                while piece.finish_reason is None:
                    pieces.append(piece.text)
                    tokens += piece.tokens
                    piece = await self._next(text)
                pieces.append(piece.text)
                tokens += piece.tokens
        self._observe_end()
        body = self._completion("".join(pieces), tokens, piece)
        await send_json(send, 200, body, [(b"x-request-id", self._request_id.encode())])

    async def _send_stream(self, receive: Receive, send: Send) -> None:
        stream = EventStream(send, [(b"x-request-id", self._request_id.encode())])
        try:
            async with DisconnectScope(receive):
                with await self._open() as text:
                    last_events = await self._send_chunks(text, stream)
        except ClientClosed:
            raise
        except HeadraceError as error:
            if not stream.started:
                raise
            last_events = error_event(error)
        self._observe_end()
        await stream.close(last_events)

    async def _send_chunks(self, text: TextStream, stream: EventStream) -> bytes:
        """Send every piece but the last with one write each; the last one's events."""
        chunks = ChunkWriter(
            "chat" if self._is_chat else "text",
            self._answer_id,
            self._created,
            self._request.model,
            usage_chunk=self._request.wants_usage_chunk,
        )
        every = self._request.wants_usage_in_every_chunk
        piece = await self._first(text)
        usage = usage_of(piece.output) if every else None
        pending = chunks.opening(usage)
        while piece.finish_reason is None:
            if piece.text or piece.tokens or every:
                pending += chunks.text(piece.text, usage, self._logprobs(piece.tokens))
            if pending:
                await stream.write(pending)
            pending = b""
            piece = await self._next(text)
            usage = usage_of(piece.output) if every else None
        if piece.text or piece.tokens:
            pending += chunks.text(piece.text, usage, self._logprobs(piece.tokens))
        pending += chunks.finish(piece.finish_reason, usage)
        if self._request.wants_usage_chunk:
            pending += chunks.usage(usage_of(piece.output))
        return pending + done_event

    async def _open(self) -> TextStream:
        return await self._service.open(self._request, self._request_id, self._cache_salt)

    async def _first(self, text: TextStream) -> TextPiece:
        piece = await text.next()
        self._last_s = self._service.clock.monotonic_s()
        self._timings.first_token_s.observe(self._last_s - self._start_s)
        return piece

    async def _next(self, text: TextStream) -> TextPiece:
        piece = await text.next()
        now_s = self._service.clock.monotonic_s()
        self._timings.inter_token_s.observe(now_s - self._last_s)
        self._last_s = now_s
        return piece

    def _observe_end(self) -> None:
        self._timings.request_s.observe(self._service.clock.monotonic_s() - self._start_s)

    @property
    def _top_count(self) -> int | None:
        return self._request.top_logprobs_count

    @property
    def _answer_id(self) -> str:
        return f"{'chatcmpl' if self._is_chat else 'cmpl'}-{self._request_id}"

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> ChatLogprobs | TextLogprobs | None:
        """What is said of these tokens; None if the caller did not ask, or there are none."""
        count = self._top_count
        if count is None or not tokens:
            return None
        if self._is_chat:
            return chat_logprobs(tokens, self._service.tokenizer)
        return text_logprobs(tokens, self._service.tokenizer, count)

    def _completion(self, text: str, tokens: Sequence[PlacedToken], last: TextPiece) -> bytes:
        identity = (self._answer_id, self._created, self._request.model)
        assert last.finish_reason is not None
        reason, usage, count = last.finish_reason, usage_of(last.output), self._top_count
        tokenizer = self._service.tokenizer
        if self._is_chat:
            listed = None if count is None else chat_logprobs(tokens, tokenizer)
            choice = ChatChoice(AssistantMessage(text), reason, logprobs=listed)
            return _encode(ChatCompletion(*identity, [choice], usage))
        columns = None if count is None else text_logprobs(tokens, tokenizer, count)
        continuation = TextChoice(text, reason, logprobs=columns)
        return _encode(TextCompletion(*identity, [continuation], usage))
