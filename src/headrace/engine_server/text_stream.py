"""A request's choices as text, in pieces as they come; leaving early aborts the request.

Streamed and unstreamed answers read the same pieces, so their texts are equal byte for byte. What
makes a choice's text of its tokens is `ChoiceText`.
"""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    InvalidRequest,
    UpstreamFailed,
)
from headrace.engine_server.choice_text import ChoiceText
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.logprobs import PlacedToken
from headrace.engine_server.messages import Output, Submit, WireLogprobs
from headrace.engine_server.prompts import Prompt
from headrace.tokenizer.detokenizer import TokenBytes
from headrace.tokenizer.stop_matcher import StopMatcher


class TextPiece(NamedTuple):
    """What one or more steps added to one choice of an answer."""

    text: str  # may be empty: half a character, or what may become a stop string
    finish_reason: str | None  # stop or length, in the choice's last piece
    output: Output  # with the usage of the whole request up to now, all choices together
    tokens: tuple[PlacedToken, ...] = ()  # those that begin in the text, with log-probabilities
    choice: int = 0  # prompt number * outputs of each prompt + output number
    token_ids: tuple[int, ...] = ()  # those that came, whatever of their text is shown yet
    cumulative_logprob: float = 0.0  # of the choice up to now
    stop: str | None = None  # the stop string that ended the choice


class TextStream:
    """`with TextStream(...) as text: while text.is_open: await text.next()`."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: TokenBytes,
        submit: Submit,
        stop_strings: tuple[str, ...],
        *,
        shows_stop: bool = False,
        prompts: Sequence[Prompt] = (),
    ) -> None:
        """Send the request; raises what `EngineClient.submit` raises.

        `shows_stop`: a stop string is part of the text that it ends. `prompts` are kept for who
        reads the answer."""
        self.prompts = prompts
        self._client = client
        self._request_id = submit.request_id
        matcher = StopMatcher(stop_strings) if stop_strings else None  # built once for all choices
        self._choices = [
            ChoiceText(tokenizer, submit, matcher and matcher.fresh(), shows_stop=shows_stop)
            for _ in range(submit.choices)
        ]
        self._lasts: dict[int, Output] = {}  # the last output of each choice
        self._pieces: deque[TextPiece] = deque()
        # Of a prompt's tokens but the first, by the index of its first choice, once there.
        self.prompt_logprobs: dict[int, tuple[WireLogprobs, ...]] = {}
        self._stream = client.submit(submit)

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not all(choice.ended for choice in self._choices):
            self._client.abort(self._request_id)

    @property
    def is_open(self) -> bool:
        """Whether there are more pieces."""
        return bool(self._pieces) or not all(choice.ended for choice in self._choices)

    async def next(self) -> TextPiece:
        """The next piece of any choice; raises what ended the request early."""
        while not self._pieces:
            self._read(await self._stream.next())
        return self._pieces.popleft()

    def end(self, index: int) -> None:
        """End a choice at its last output, as its reader wants no more of it."""
        if not self._choices[index].ended:
            self._choices[index].end()
            self._client.stop(self._request_id, self._lasts[index])

    def _read(self, outputs: list[Output]) -> None:
        """Make one piece for each choice that these outputs are of, in the order they came."""
        by_choice: dict[int, list[Output]] = {}
        for output in outputs:
            _raise_failure(output, self._stream.abort_reason)
            by_choice.setdefault(output.index, []).append(output)
            if output.prompt_logprobs:
                self.prompt_logprobs[output.index] = output.prompt_logprobs
        for index, own in by_choice.items():
            if not self._choices[index].ended:
                self._pieces.append(self._piece(index, own))

    def _piece(self, index: int, outputs: list[Output]) -> TextPiece:
        choice = self._choices[index]
        text, last, token_ids = "", outputs[-1], []
        for output in outputs:
            added, at_stop = choice.read(output)
            text += added
            if at_stop is not None:
                self._client.stop(self._request_id, at_stop)
                last = at_stop
                token_ids += at_stop.token_ids
                break
            token_ids += output.token_ids
            if output.finish_reason is not None:
                text += choice.finish(output.finish_reason)
        self._lasts[index] = last
        usage = self._stream.last
        assert usage is not None, "an output came"
        return TextPiece(
            text,
            choice.finish_reason,
            usage,
            choice.release_tokens(text),
            index,
            tuple(token_ids),
            last.cumulative_logprob,
            choice.stop,
        )


def _raise_failure(output: Output, abort_reason: HeadraceError | None) -> None:
    if output.finish_reason == "timeout":
        raise DeadlineExceeded(output.error or "The request's deadline passed.")
    if output.error is not None and output.is_callers_error:
        raise InvalidRequest(output.error)
    if output.error is not None:
        raise UpstreamFailed(output.error)
    if output.finish_reason == "abort":
        raise abort_reason or UpstreamFailed("The engine ended this request early; try again.")
