"""An engine's stream as it passes: usage read, the model's logical name put in, extras taken out.

Bytes in, whole events out; no I/O. Everything that is not rewritten stays as the engine wrote it.
The end marker is held back, because the settlement comes before it.
"""

import msgspec
from msgspec import UNSET

from headrace.adapters.protocol import ChunkStream, Dialect, EngineAdapter
from headrace.base.errors import UpstreamFailed
from headrace.gateway.reported_usage import ReportedUsage
from headrace.protocol.responses import CompletionTokensDetails, Usage
from headrace.protocol.sse import EventTooLarge, SseDecoder, done_data
from headrace.spec.settlements import TokenUsage

no_choices = b"[]"
null = msgspec.Raw(b"null")


_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_usage = msgspec.json.Decoder(ReportedUsage | None)


class StreamRewriter:
    """One stream. After `feed`: `usage`, `is_done`, `error_body` say what has passed."""

    def __init__(
        self,
        model_name: str,
        adapter: EngineAdapter,
        *,
        usage_chunk: bool,
        usage_in_every_chunk: bool,
        created: int = 0,
    ) -> None:
        """`created` (Unix seconds) is for engines whose own streams do not say it."""
        self._model = msgspec.Raw(_encode(model_name))
        self._adapter = adapter
        self._running_usage_field = adapter.running_usage_field
        self._usage_chunk = usage_chunk
        self._usage_in_every_chunk = usage_in_every_chunk
        self._decoder = SseDecoder()
        dialect = adapter.dialect
        self._translation = None if dialect is None else dialect.stream(created)
        self._ends_with_body = dialect is not None and dialect.ends_with_body
        self.usage: TokenUsage | None = None  # the newest that the engine reported
        self.content_chunks = 0
        self._owes_usage_chunk = usage_chunk  # until one passes
        self._latest: dict[str, msgspec.Raw] = {}  # the fields of the chunk that passed last
        self.is_done = False
        self.error_body: bytes | None = None  # of an error inside the stream

    @property
    def may_end(self) -> bool:
        """Whether the stream is whole if nothing more comes, its end marker neither."""
        if self._ends_with_body:
            return self.error_body is None
        return not self._adapter.marks_stream_end and self.usage is not None

    def feed(self, data: bytes) -> bytes:
        """The events to pass on; UpstreamFailed if the engine's are malformed."""
        try:
            events = [event.data for event in self._decoder.feed(data)]
            if self._translation is not None:
                events = [chunk for event in events for chunk in self._translation.feed(event)]
            return b"".join([self._event(event) for event in events])
        except (EventTooLarge, msgspec.DecodeError) as error:
            raise UpstreamFailed(f"The engine's stream is malformed: {error}.") from None

    def _event(self, data: bytes) -> bytes:
        if self.is_done or self.error_body is not None:
            return b""
        if data == done_data:
            if not self.content_chunks:
                raise UpstreamFailed("The engine's stream has an end and nothing before it.")
            self.is_done = True
            return self._owed_usage_chunk()
        fields = _fields.decode(data)
        if "error" in fields and fields["error"] != null:
            self.error_body = data
            return b""
        if self._running_usage_field is not None:
            self._read_running_usage(fields.pop(self._running_usage_field, None))
        reported = fields.pop("usage", None)
        if reported is not None and reported != null:
            usage = _usage.decode(reported)
            if usage is not None:
                self._note(usage.tokens())
        if bytes(fields.get("choices", null)) == no_choices:
            if not self._usage_chunk:
                return b""
        else:
            self.content_chunks += 1
        if reported is not None and self._usage_in_every_chunk:
            fields["usage"] = reported
        elif self._usage_chunk:
            is_last = bytes(fields.get("choices", null)) == no_choices
            fields["usage"] = reported if is_last and reported is not None else null
            self._owes_usage_chunk &= fields["usage"] == null
        fields["model"] = self._model
        self._latest = fields
        return b"data: " + _encode(fields) + b"\n\n"

    def finish(self) -> bytes:
        """What is to be passed on where the stream ended without its marker."""
        assert self.may_end, "a stream that broke off has no proper end"
        if self._translation is not None:
            return self._finish_translated(self._translation)
        self.is_done = True
        return self._owed_usage_chunk()

    def _finish_translated(self, translation: ChunkStream) -> bytes:
        """The body's end in the other API's words; what is made of it is no token of the engine."""
        counted = self.content_chunks
        if not counted:
            raise UpstreamFailed("The engine's stream has an end and nothing before it.")
        passed = b"".join([self._event(chunk) for chunk in translation.end()])
        self.content_chunks = counted
        return passed

    def _owed_usage_chunk(self) -> bytes:
        """The usage chunk that the client asked for, where the engine told usage in another one."""
        if not self._owes_usage_chunk or self._usage_in_every_chunk or self.usage is None:
            return b""
        chunk = {
            **self._latest,
            "choices": msgspec.Raw(no_choices),
            "usage": _shown_usage(self.usage),
        }
        return b"data: " + _encode(chunk) + b"\n\n"

    def _read_running_usage(self, value: msgspec.Raw | None) -> None:
        """Note the usage so far of an engine that has a field of its own for it."""
        usage = None if value is None else self._adapter.running_usage(bytes(value))
        if usage is not None:
            self._note(usage)

    def _note(self, usage: TokenUsage) -> None:
        """Take newer numbers; a class that only the earlier ones tell of stays known."""
        before = self.usage
        if before is not None and before.draft_tokens is not None and usage.draft_tokens is None:
            usage = msgspec.structs.replace(usage, draft_tokens=before.draft_tokens)
        self.usage = usage


def _shown_usage(tokens: TokenUsage) -> Usage:
    """Usage as clients read it, without classes that nobody counted."""
    usage = Usage.of(tokens.prompt_tokens, tokens.cached_tokens, tokens.completion_tokens)
    if tokens.reasoning_tokens is tokens.draft_tokens is None:
        return usage
    refused = UNSET if tokens.draft_tokens is None else tokens.draft_tokens
    details = CompletionTokensDetails(
        tokens.reasoning_tokens or 0, rejected_prediction_tokens=refused
    )
    return msgspec.structs.replace(usage, completion_tokens_details=details)


class WholeRewrite(msgspec.Struct, frozen=True):
    """An unstreamed answer for the client, and what it used."""

    body: bytes
    usage: TokenUsage | None  # None: the engine did not say


def rewrite_whole(
    body: bytes,
    model_name: str,
    dialect: Dialect | None = None,
    created: int = 0,
    *,
    generates: bool = False,
) -> WholeRewrite:
    """Put the logical model's name into an answer; UpstreamFailed if it is no JSON object, or one
    without choices where the route `generates`."""
    if dialect is not None:
        body = dialect.whole(body, created)
    try:
        fields = _fields.decode(body)
        reported = fields.get("usage")
        usage = None if reported is None else _usage.decode(reported)
    except msgspec.DecodeError as error:
        raise UpstreamFailed(f"The engine's answer is malformed: {error}.") from None
    if generates and bytes(fields.get("choices", null)) in (bytes(null), no_choices):
        raise UpstreamFailed("The engine's answer has no choices in it.")
    fields["model"] = msgspec.Raw(_encode(model_name))
    return WholeRewrite(
        _encode(fields), usage.tokens() if usage is not None and usage.is_counted else None
    )


class SaidMessage(msgspec.Struct):
    """A choice's message, as far as it is text."""

    content: str | None = None


class SaidChoice(msgspec.Struct):
    """A choice of a chat, or of a completion."""

    message: SaidMessage | None = None
    text: str | None = None


class SaidAnswer(msgspec.Struct):
    """An unstreamed answer, as far as it is text."""

    choices: list[SaidChoice] = []


_said = msgspec.json.Decoder(SaidAnswer)


def said_bytes(body: bytes) -> int:
    """How many bytes of text an unstreamed answer has; of one without, all of it."""
    try:
        choices = _said.decode(body).choices
    except msgspec.DecodeError:
        return len(body)
    texts = [choice.text or (choice.message and choice.message.content) for choice in choices]
    return sum(len(text.encode()) for text in texts if text) or len(body)
