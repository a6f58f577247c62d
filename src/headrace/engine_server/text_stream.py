"""From token ids to text: bytes, complete characters, the earliest stop match, a piece.

Streamed and unstreamed answers read the same pieces, so their texts are equal byte for byte.
"""

from types import TracebackType
from typing import NamedTuple

from headrace.base.errors import UpstreamFailed
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.logprobs import HeldTokens, PlacedToken
from headrace.engine_server.messages import Output, Submit
from headrace.tokenizer.detokenizer import IncrementalDetokenizer
from headrace.tokenizer.stop_matcher import StopMatcher
from headrace.tokenizer.tokenizer import Tokenizer


class TextPiece(NamedTuple):
    """What one or more steps added to an answer."""

    text: str  # may be empty: half a character, or what may become a stop string
    finish_reason: str | None  # stop or length, in the last piece
    output: Output  # the last one of the piece, for its usage
    tokens: tuple[PlacedToken, ...] = ()  # those that begin in the text, with log-probabilities


class TextStream:
    """`with TextStream(...) as text: await text.next()`: leaving early aborts the request."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        submit: Submit,
        stop_strings: tuple[str, ...],
    ) -> None:
        """Send the request; raises what `EngineClient.submit` raises."""
        self._client = client
        self._request_id = submit.request_id
        self._min_tokens = submit.min_tokens
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._held = None if submit.top_logprobs is None else HeldTokens()
        self._characters = 0  # of the whole output, counted only for `_held`
        self._matcher = StopMatcher(stop_strings) if stop_strings else None
        self._ended = False
        self._stop_matched = False
        self._stream = client.submit(submit)

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._ended:
            self._client.abort(self._request_id)

    async def next(self) -> TextPiece:
        """The next piece; raises what ended the request early."""
        piece = await self._next()
        if self._held is None:
            return piece
        tokens = self._held.release(piece.text)
        if self._ended and not self._stop_matched:
            tokens += self._held.release_all()
        return piece._replace(tokens=tokens)

    async def _next(self) -> TextPiece:
        text = ""
        outputs = await self._stream.next()
        for output in outputs:
            added, stopped = self._read(output)
            text += added
            if stopped:
                self._ended = self._stop_matched = True
                stopped_early = self._client.stop(self._request_id, output)
                return TextPiece(text, "stop", output if stopped_early else outputs[-1])
            if output.finish_reason is not None:
                self._ended = True
                return self._last_piece(text, output)
        return TextPiece(text, None, outputs[-1])

    def _read(self, output: Output) -> tuple[str, bool]:
        """An output's text that may be shown, and whether a stop string ended the answer."""
        text = self._push(output)
        if self._matcher is None or output.completion_tokens <= self._min_tokens:
            return text, False
        result = self._matcher.push(text)
        return result.text_to_emit, result.matched is not None

    def _push(self, output: Output) -> str:
        """An output's text; where log-probabilities are wanted, its tokens are noted one by one."""
        if self._held is None:
            return self._detokenizer.push(output.token_ids)
        text = ""
        for token_id, (logprob, top) in zip(output.token_ids, output.logprobs, strict=True):
            added = self._detokenizer.push([token_id])
            start, self._characters = self._characters, self._characters + len(added)
            # Bytes of an earlier token that proved to be no character come out before its own.
            own = len(self._tokenizer.text_bytes(token_id).decode(errors="replace"))
            start = max(start, self._characters - own)
            self._held.add(PlacedToken(start, token_id, logprob, top))
            text += added
        return text

    def _last_piece(self, text: str, output: Output) -> TextPiece:
        if output.error is not None:
            raise UpstreamFailed(output.error)
        if output.finish_reason == "abort":
            raise UpstreamFailed("The engine ended this request early; try again.")
        rest = self._detokenizer.finish()
        if self._matcher is None:
            return TextPiece(text + rest, output.finish_reason, output)
        result = self._matcher.push(rest)
        if result.matched is not None:
            self._stop_matched = True
            return TextPiece(text + result.text_to_emit, "stop", output)
        text += result.text_to_emit + self._matcher.finish()
        return TextPiece(text, output.finish_reason, output)
