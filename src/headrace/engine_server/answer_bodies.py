"""What is sent of an answer: the body of a whole one, the chunks of a stream."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from headrace.base.clock import Clock
from headrace.engine_server.choices import Choice, best
from headrace.engine_server.dialect import Dialect
from headrace.engine_server.kv_params import answered_params
from headrace.engine_server.logprobs import (
    PlacedToken,
    chat_logprobs,
    echoed_logprobs,
    prompt_logprobs,
    text_logprobs,
)
from headrace.engine_server.messages import Output, WireLogprobs
from headrace.engine_server.prompts import Prompt
from headrace.engine_server.text_stream import TextPiece
from headrace.engine_server.usage_log import usage_of
from headrace.protocol.chunks import ChunkWriter
from headrace.protocol.deltas import CallDelta, ContentDelta, Delta
from headrace.protocol.kv_transfer import KvTransferParams
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.responses import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    CompletionTokensDetails,
    PromptLogprobs,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)
from headrace.tokenizer.tokenizer import Tokenizer

PromptTokens = Mapping[int, tuple[WireLogprobs, ...]]  # by the first choice of each prompt

_encode = msgspec.json.Encoder().encode


class AnswerBodies:
    """Writes the bodies of one request's answer."""

    def __init__(
        self,
        request: ChatRequest | CompletionRequest,
        *,
        tokenizer: Tokenizer,
        dialect: Dialect,
        request_id: str,
        clock: Clock,
        prompts: Sequence[Prompt],
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._prompts = prompts
        self._created = int(clock.wall_s())
        self._is_chat = isinstance(request, ChatRequest)
        self.answer_id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{request_id}"
        self._per_prompt = request.sequences_count // len(prompts)
        self._writers: dict[int, ChunkWriter] = {}  # by choice

    # A whole answer.

    def whole(self, choices: Sequence[Choice], last: Output, prompt_tokens: PromptTokens) -> bytes:
        """The body; of several choices of a prompt the best ones are sent, if fewer are wanted."""
        sent: list[Choice] = []
        for start in range(0, len(choices), self._per_prompt):
            of_prompt = choices[start : start + self._per_prompt]
            sent += best(of_prompt, self._request.answers_count)
        usage = self._usage(choices, last)
        identity = (self.answer_id, self._created, self._request.model)
        if self._is_chat:
            listed = [self._chat_choice(index, choice) for index, choice in enumerate(sent)]
            return _encode(
                ChatCompletion(
                    *identity,
                    listed,
                    usage,
                    prompt_logprobs=self._prompt_logprobs(0, prompt_tokens),
                    prompt_token_ids=self._prompt_token_ids(0),
                    kv_transfer_params=_kv_params(last),
                )
            )
        texts = [self._text_choice(i, choice, prompt_tokens) for i, choice in enumerate(sent)]
        return _encode(TextCompletion(*identity, texts, usage, kv_transfer_params=_kv_params(last)))

    def _chat_choice(self, index: int, choice: Choice) -> ChatChoice:
        listed = None
        if self._request.top_logprobs_count is not None:
            listed = chat_logprobs(choice.tokens, self._tokenizer)
        return ChatChoice(
            choice.message(),
            choice.finish_reason or "stop",
            index,
            listed,
            stop_reason=choice.stop or UNSET,
            token_ids=self._token_ids(choice.token_ids),
        )

    def _text_choice(self, index: int, choice: Choice, prompt_tokens: PromptTokens) -> TextChoice:
        prompt = choice.index // self._per_prompt
        echo = self._echo(prompt)
        columns = self._text_logprobs(choice.tokens, len(echo))
        if echo and columns is not None:
            first = self._prompts[prompt].token_ids
            known = prompt_tokens.get(prompt * self._per_prompt, ())
            columns = echoed_logprobs(first, known, columns, self._tokenizer)
        return TextChoice(
            echo + choice.collected.content,
            choice.finish_reason or "stop",
            index,
            columns,
            stop_reason=choice.stop or UNSET,
            prompt_logprobs=self._prompt_logprobs(prompt, prompt_tokens),
            prompt_token_ids=self._prompt_token_ids(prompt),
            token_ids=self._token_ids(choice.token_ids),
        )

    # A stream.

    def chunks(
        self, choice: Choice, deltas: Sequence[Delta], piece: TextPiece, prompt_tokens: PromptTokens
    ) -> bytes:
        """The chunks of one piece: the choice's opening, what it gains, its end."""
        every = self._request.wants_usage_in_every_chunk
        usage = usage_of(piece.output) if every else None
        writer = self._writer(choice.index)
        extra = self._extra(choice, piece)
        events = b"" if choice.is_open else self._opening(writer, choice, usage, prompt_tokens)
        choice.is_open = True
        logprobs = self._logprobs(piece.tokens, choice)
        if not deltas and (extra or (every and choice.finish_reason is None)):
            deltas = [ContentDelta("")]
        for delta in deltas:
            call_id = choice.call_id(delta.call_index) if isinstance(delta, CallDelta) else ""
            if isinstance(logprobs, TextLogprobs) or not self._is_chat:
                assert isinstance(delta, ContentDelta), "a text completion has text alone"
                events += writer.text(delta.text, usage, logprobs, extra)
            else:
                events += writer.delta(delta, call_id, usage, logprobs, extra)
            extra, logprobs = None, None  # once a piece
        if choice.finish_reason is not None:
            events += writer.finish(choice.finish_reason, usage, choice.stop)
        return events

    def usage_chunk(self, choices: Sequence[Choice], last: Output) -> bytes:
        """The chunk after the last one, if the caller asked for it."""
        if not self._request.wants_usage_chunk:
            return b""
        return self._writer(0).usage(self._usage(choices, last))

    def _opening(
        self, writer: ChunkWriter, choice: Choice, usage: Usage | None, prompt_tokens: PromptTokens
    ) -> bytes:
        prompt = choice.index // self._per_prompt
        asked = self._prompts[prompt].token_ids if self._request.return_token_ids else None
        echo = self._echo(prompt)
        if not echo:
            return writer.opening(usage, asked)
        columns = self._text_logprobs((), 0)
        if columns is not None:
            known = prompt_tokens.get(prompt * self._per_prompt, ())
            columns = echoed_logprobs(
                self._prompts[prompt].token_ids, known, columns, self._tokenizer
            )
        return writer.text(echo, usage, columns)

    def _writer(self, index: int) -> ChunkWriter:
        writer = self._writers.get(index)
        if writer is None:
            writer = self._writers[index] = ChunkWriter(
                "chat" if self._is_chat else "text",
                self.answer_id,
                self._created,
                self._request.model,
                usage_chunk=self._request.wants_usage_chunk,
                index=index,
            )
        return writer

    # Parts of both.

    def _extra(self, choice: Choice, piece: TextPiece) -> dict[str, object] | None:
        """Further fields of a piece's first chunk; a chat tells the prompt when it opens."""
        if not self._request.return_token_ids:
            return None
        extra: dict[str, object] = {"token_ids": piece.token_ids} if piece.token_ids else {}
        if not self._is_chat and not choice.is_open:
            prompt = self._prompts[choice.index // self._per_prompt]
            extra["prompt_token_ids"] = prompt.token_ids
        return extra or None

    def _logprobs(
        self, tokens: Sequence[PlacedToken], choice: Choice
    ) -> ChatLogprobs | TextLogprobs | None:
        """What is said of these tokens; None if the caller did not ask, or there are none."""
        if self._request.top_logprobs_count is None or not tokens:
            return None
        if self._is_chat:
            return chat_logprobs(tokens, self._tokenizer)
        return self._text_logprobs(tokens, len(self._echo(choice.index // self._per_prompt)))

    def _text_logprobs(
        self, tokens: Sequence[PlacedToken], offset_characters: int
    ) -> TextLogprobs | None:
        count = self._request.top_logprobs_count
        if count is None:
            return None
        return text_logprobs(tokens, self._tokenizer, count, offset_characters)

    def _echo(self, prompt: int) -> str:
        """The text that stands before a completion's own."""
        request = self._request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return ""
        asked = self._prompts[prompt]
        return self._tokenizer.decode(asked.token_ids) if asked.text is None else asked.text

    def _prompt_logprobs(
        self, prompt: int, prompt_tokens: PromptTokens
    ) -> PromptLogprobs | UnsetType:
        if self._request.prompt_logprobs is None:
            return UNSET
        known = prompt_tokens.get(prompt * self._per_prompt, ())
        return prompt_logprobs(self._prompts[prompt].token_ids, known, self._tokenizer)

    def _prompt_token_ids(self, prompt: int) -> list[int] | UnsetType:
        return self._prompts[prompt].token_ids if self._request.return_token_ids else UNSET

    def _token_ids(self, token_ids: list[int]) -> list[int] | UnsetType:
        return token_ids if self._request.return_token_ids else UNSET

    def _usage(self, choices: Sequence[Choice], last: Output) -> Usage:
        """The whole request's usage, with the thoughts among its tokens where there are any."""
        usage = usage_of(last)
        reasoning = self._dialect.reasoning
        if reasoning is None or not self._is_chat:
            return usage
        thought = sum(
            choice.reasoning_token_count(self._tokenizer, reasoning.closing) for choice in choices
        )
        details = usage.completion_tokens_details or CompletionTokensDetails()
        details = msgspec.structs.replace(
            details, reasoning_tokens=min(thought, usage.completion_tokens)
        )
        return msgspec.structs.replace(usage, completion_tokens_details=details)


def _kv_params(last: Output) -> KvTransferParams | UnsetType:
    return UNSET if last.handover is None else answered_params(last.handover)
