"""A fast, deterministic engine over HTTP: fixed tokens, exact usage, and every way to fail.

It speaks what the gateway needs of `headrace serve`: both generating routes, usage in chunks,
`/internal/usage/{request_id}` and the model list. Each request takes the next `Behaviour` of its
plan, or the default one; nothing waits on time, tests open gates instead.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

from headrace.base.errors import (
    ClientClosed,
    HeadraceError,
    InvalidRequest,
    NotFound,
    UpstreamFailed,
)
from headrace.http.asgi import (
    DisconnectScope,
    EventStream,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    send_bytes,
    send_json,
)
from headrace.protocol.chunks import ChunkKind, ChunkWriter
from headrace.protocol.errors import error_body, error_event
from headrace.protocol.kv_transfer import KvTransferParams
from headrace.protocol.requests import StreamOptions
from headrace.protocol.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    CompletionTokensDetails,
    EndedRequest,
    ModelCard,
    ModelList,
    PromptTokensDetails,
    TextChoice,
    TextCompletion,
    Usage,
)
from headrace.protocol.sse import done_event

body_bytes_max = 64 * 1024 * 1024
usage_path = "/internal/usage/"
reading_paths = frozenset({"/v1/embeddings", "/v1/rerank", "/tokenize"})
generating_paths = frozenset({"/v1/chat/completions", "/v1/completions"})
seen_requests_max = 100_000
rejected = "rejected"  # before anything was computed; nothing is known of it afterwards

_encode = msgspec.json.Encoder().encode


class Failure(Enum):
    """How an answer goes wrong after `Behaviour.fail_after` tokens."""

    NONE = "none"
    STATUS = "status"  # before anything: `Behaviour.status` with an error body
    ERROR_EVENT = "error event"  # inside a stream of status 200
    CUT = "cut"  # the connection breaks
    HANG = "hang"  # nothing more comes until the caller leaves


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One answer."""

    tokens: int = 4
    failure: Failure = Failure.NONE
    fail_after: int = 0  # tokens that go out before
    status: int = 503
    error: HeadraceError = field(default_factory=lambda: UpstreamFailed("the fake engine failed"))
    gate: asyncio.Event | None = None  # opened before more tokens come than `gate_after`
    gate_after: int = 0  # of a stream; of a whole answer none
    reports_usage: bool = True
    prompt_details: PromptTokensDetails | None = None
    completion_details: CompletionTokensDetails | UnsetType = UNSET
    waiting_kv: Mapping[str, object] | None = None  # what it says then; None: as ours does
    hands_over: bool = True  # says where a prompt's KV waits, to who asks for it


class AskedTransfer(msgspec.Struct):
    """What matters of `kv_transfer_params`; each kind of engine has fields of its own."""

    do_remote_decode: bool | None = None


class FakeRequest(msgspec.Struct):
    """What matters of a request."""

    model: str
    messages: list[msgspec.Raw] | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    kv_transfer_params: AskedTransfer | None = None


@dataclass(slots=True)
class Seen:
    """A request that reached the engine."""

    request_id: str
    headers: dict[str, str]
    body: bytes
    prompt_tokens: int
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    completion_tokens: int = 0
    finish_reason: str = "abort"
    behaviour: Behaviour = Behaviour()

    @property
    def usage(self) -> Usage:
        """What it used so far."""
        usage = Usage.of(self.prompt_tokens, 0, self.completion_tokens)
        return msgspec.structs.replace(
            usage,
            prompt_tokens_details=self.behaviour.prompt_details or PromptTokensDetails(),
            completion_tokens_details=self.behaviour.completion_details,
        )


_request = msgspec.json.Decoder(FakeRequest)
waiting_kv = KvTransferParams(
    do_remote_prefill=True, remote_engine_id="e" * 32, remote_port=1, transfer_id="a" * 32
)


def prompt_tokens_of(prompt: object) -> int:
    """How many tokens this engine makes of a prompt."""
    return 1 + len(_encode(prompt)) // 8


class FakeEngine:
    """The ASGI app; `seen` has every request, in the order of arrival."""

    def __init__(
        self,
        *,
        api_key: str = "",
        served_name: str = "fake",
        context_length: int = 4096,
        default: Behaviour | None = None,
        remembers: bool = True,
        counts: bool = True,
    ) -> None:
        """Without `remembers` nothing is kept of a request, as a bench that runs long wants;
        without `counts` there is no /tokenize."""
        self._counts = counts
        self.api_key = api_key
        self.served_name = served_name
        self.context_length = context_length
        self.default = default or Behaviour()
        self.plan: deque[Behaviour] = deque()
        self.seen: list[Seen] = []
        self.arrived = asyncio.Condition()
        self.places: int | None = None  # how many it runs at once by its own report; None: all
        self._in_flight = 0
        self._remembers = remembers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if self.api_key and header(scope, b"authorization") != f"Bearer {self.api_key}":
            await send_json(send, 401, b'{"error":{"message":"wrong key"}}')
        elif path == "/v1/models":
            card = ModelCard(self.served_name, 0, "model", "sim", self.context_length)
            await send_json(send, 200, _encode(ModelList([card])))
        elif path == "/health":
            await send_json(send, 200, b"{}")
        elif path == "/metrics":
            await send_bytes(send, 200, self._metrics(), [(b"content-type", b"text/plain")])
        elif path in reading_paths and (self._counts or path != "/tokenize"):
            await self._read(path, receive, send)
        elif path.startswith(usage_path):
            await self._send_usage(path.removeprefix(usage_path), send)
        elif path in generating_paths:
            await self._generate(scope, receive, send, is_chat=path.endswith("/chat/completions"))
        else:
            await send_json(send, 404, error_body(NotFound("no such route")))

    async def wait_for(self, count: int) -> Seen:
        """The newest request once so many have arrived."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.seen) >= count)
        return self.seen[-1]

    def _metrics(self) -> bytes:
        """The load, as if only `places` requests ran and the others waited."""
        running = min(self._in_flight, self._in_flight if self.places is None else self.places)
        return (
            f"headrace_engine_running_requests {running}\n"
            f"headrace_engine_waiting_requests {self._in_flight - running}\n"
        ).encode()

    async def _read(self, path: str, receive: Receive, send: Send) -> None:
        """Answer what only reads: a token for each byte of the body."""
        body = await read_body(receive, body_bytes_max)
        count = len(body)
        if path == "/tokenize" and b'"messages"' in body:
            messages = _request.decode(body).messages or []
            count = prompt_tokens_of(messages)
        answer: dict[str, object] = {"model": self.served_name}
        if path == "/tokenize":
            answer |= {"count": count, "tokens": [0] * count}
        elif path == "/v1/rerank":
            answer |= {"results": [], "usage": {"total_tokens": count}}
        else:
            one = {"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}
            usage = {"prompt_tokens": count, "total_tokens": count}
            answer |= {"object": "list", "data": [one], "usage": usage}
        await send_json(send, 200, _encode(answer))

    async def _send_usage(self, request_id: str, send: Send) -> None:
        for seen in reversed(self.seen):
            if seen.request_id == request_id:
                await seen.ended.wait()
                if seen.finish_reason == rejected:
                    break
                record = EndedRequest(request_id, seen.usage, seen.finish_reason)
                await send_json(send, 200, _encode(record))
                return
        await send_json(send, 404, error_body(NotFound("no such request")))

    async def _generate(self, scope: Scope, receive: Receive, send: Send, *, is_chat: bool) -> None:
        body = await read_body(receive, body_bytes_max)
        request = _request.decode(body)
        behaviour = self.plan.popleft() if self.plan else self.default
        seen = await self._note(scope, body, request)
        seen.behaviour = behaviour
        self._in_flight += 1
        try:
            if behaviour.failure is Failure.STATUS:
                seen.finish_reason = rejected
                error = error_body(behaviour.error)
                await send_json(send, behaviour.status, error)
                return
            if request.model.partition(":")[0] != self.served_name:  # adapters are all there
                raise InvalidRequest(f"the fake engine serves {self.served_name}", param="model")
            out = EventStream(send)
            async with DisconnectScope(receive):
                if request.stream:
                    last = await self._stream(request, behaviour, seen, out, is_chat=is_chat)
                else:
                    last = await self._whole(request, behaviour, seen, out, is_chat=is_chat)
            if request.stream:
                await out.close(last)
            else:
                await send_json(send, 200, last)
        except ClientClosed:
            pass
        except HeadraceError as error:
            await send_json(send, error.http_status, error_body(error))
        finally:
            self._in_flight -= 1
            seen.ended.set()

    async def _note(self, scope: Scope, body: bytes, request: FakeRequest) -> Seen:
        prompt = request.messages if request.messages is not None else request.prompt
        seen = Seen(
            request_id=header(scope, b"x-request-id") or "",
            headers={
                str(name, "latin-1"): str(value, "latin-1") for name, value in scope["headers"]
            }
            if self._remembers
            else {},
            body=body,
            prompt_tokens=prompt_tokens_of(prompt),
        )
        if self._remembers:
            assert len(self.seen) < seen_requests_max, "a bench makes the engine forget"
            async with self.arrived:
                self.seen.append(seen)
                self.arrived.notify_all()
        return seen

    async def _tokens(self, request: FakeRequest, behaviour: Behaviour, seen: Seen) -> int:
        """Pass a gate before the first token; how many tokens the answer has."""
        seen.started.set()
        if behaviour.gate is not None and not (request.stream and behaviour.gate_after):
            await behaviour.gate.wait()
        return min(behaviour.tokens, request.max_tokens or behaviour.tokens)

    async def _whole(
        self,
        request: FakeRequest,
        behaviour: Behaviour,
        seen: Seen,
        out: EventStream,
        *,
        is_chat: bool,
    ) -> bytes:
        count = await self._tokens(request, behaviour, seen)
        seen.completion_tokens = min(count, behaviour.fail_after)
        if behaviour.failure is Failure.HANG:
            await asyncio.Event().wait()
        if behaviour.failure is Failure.CUT:
            await self._fail(behaviour, out, b"")
        if behaviour.failure is not Failure.NONE:
            raise behaviour.error
        seen.completion_tokens, seen.finish_reason = count, "stop"
        text = "".join(f" t{number}" for number in range(count))
        name = self.served_name
        answer = (
            ChatCompletion("c", 0, name, [ChatChoice(AssistantMessage(text), "stop")], seen.usage)
            if is_chat
            else TextCompletion("c", 0, name, [TextChoice(text, "stop")], seen.usage)
        )
        params = request.kv_transfer_params
        if params is not None and params.do_remote_decode and behaviour.hands_over:
            answer = msgspec.structs.replace(answer, kv_transfer_params=waiting_kv)
        if behaviour.reports_usage and behaviour.waiting_kv is None:
            return _encode(answer)
        fields = msgspec.to_builtins(answer)
        if behaviour.waiting_kv is not None and "kv_transfer_params" in fields:
            fields["kv_transfer_params"] = behaviour.waiting_kv
        if not behaviour.reports_usage:
            del fields["usage"]
        return _encode(fields)

    async def _stream(
        self,
        request: FakeRequest,
        behaviour: Behaviour,
        seen: Seen,
        out: EventStream,
        *,
        is_chat: bool,
    ) -> bytes:
        """Send every token's chunk with one write; the last events."""
        options = request.stream_options or StreamOptions()
        wanted = behaviour.reports_usage
        every = wanted and bool(options.continuous_usage_stats)
        at_end = wanted and bool(options.include_usage)
        kind: ChunkKind = "chat" if is_chat else "text"
        chunks = ChunkWriter(kind, "c", 0, self.served_name, usage_chunk=at_end)
        count = await self._tokens(request, behaviour, seen)
        pending = chunks.opening(seen.usage if every else None)
        for number in range(count):
            if behaviour.failure is not Failure.NONE and number >= behaviour.fail_after:
                return await self._fail(behaviour, out, pending)
            if behaviour.gate is not None and number and number == behaviour.gate_after:
                await behaviour.gate.wait()
            seen.completion_tokens = number + 1
            pending += chunks.text(f" t{number}", seen.usage if every else None)
            await out.write(pending)
            pending = b""
        seen.finish_reason = "stop"
        pending += chunks.finish("stop", seen.usage if every else None)
        if at_end:
            pending += chunks.usage(seen.usage)
        return pending + done_event

    async def _fail(self, behaviour: Behaviour, out: EventStream, pending: bytes) -> bytes:
        if behaviour.failure is Failure.HANG:
            await asyncio.Event().wait()
        if behaviour.failure is Failure.ERROR_EVENT:
            return pending + error_event(behaviour.error)
        await out.write(pending if behaviour.fail_after else b"")
        raise ConnectionResetError("the fake engine breaks its connection")
