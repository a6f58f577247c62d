"""One choice of an answer as it grows: pieces of text in, deltas out, all of it kept for the end.

Streams send the deltas, whole answers send what they add up to; both come from the same place.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from headrace.engine_server.logprobs import PlacedToken
from headrace.engine_server.text_stream import TextPiece
from headrace.protocol.answer_parser import AnswerParser
from headrace.protocol.deltas import Collected, Delta, ReasoningDelta
from headrace.protocol.responses import AssistantMessage
from headrace.protocol.tools import CalledFunction, ToolCall
from headrace.tokenizer.tokenizer import Tokenizer

call_id_characters = 24
token_characters_max = 256  # far above any token's


@dataclass(slots=True)
class Choice:
    """One choice so far."""

    index: int
    answer_id: str
    parser: AnswerParser
    shows_reasoning: bool = True
    collected: Collected = field(default_factory=Collected)
    tokens: list[PlacedToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    stop: str | None = None  # the stop string that ended it
    is_open: bool = False  # whether a stream has begun it
    thought: bool = False  # whether any of it is reasoning

    def add(self, piece: TextPiece) -> list[Delta]:
        """Take in a piece; what it adds. After it, `is_complete` may ask for the end."""
        deltas = self.parser.push(piece.text)
        self.tokens += piece.tokens
        self.token_ids += piece.token_ids
        self.cumulative_logprob = piece.cumulative_logprob
        self.stop = piece.stop
        reason = piece.finish_reason
        if reason is None and self.parser.is_complete:
            reason = "stop"
        if reason is not None:
            deltas += self.parser.finish()
            self.finish_reason = self.parser.finish_reason(reason)
        self.thought |= any(isinstance(delta, ReasoningDelta) for delta in deltas)
        if not self.shows_reasoning:
            deltas = [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]
        self.collected.add(deltas)
        return deltas

    def reasoning_token_count(self, tokenizer: Tokenizer, closing: str) -> int:
        """The tokens of the thought, its end included; all of them if it has no end."""
        if not self.thought:
            return 0
        written = ""
        for count, token_id in enumerate(self.token_ids, start=1):
            written += tokenizer.token_bytes(token_id).decode(errors="replace")
            if closing in written[-2 * len(closing) - token_characters_max :]:
                return count
        return len(self.token_ids)

    @property
    def mean_logprob(self) -> float:
        """How likely the model found its own tokens, on average."""
        return self.cumulative_logprob / max(1, len(self.token_ids))

    def call_id(self, call_index: int) -> str:
        """A call's id: the same each time, and no other call's."""
        place = f"{self.answer_id} {self.index} {call_index}".encode()
        return f"call_{hashlib.blake2b(place).hexdigest()[:call_id_characters]}"

    def message(self) -> AssistantMessage:
        """A chat's answer, whole."""
        collected = self.collected
        calls = [
            ToolCall(self.call_id(index), CalledFunction(call.name, call.arguments))
            for index, call in enumerate(collected.calls)
        ]
        thought = collected.reasoning or UNSET
        return AssistantMessage(
            content=collected.content or None if calls else collected.content,
            tool_calls=calls or UNSET,
            reasoning_content=thought,
            reasoning=thought,
        )


def best(choices: Sequence[Choice], count: int) -> list[Choice]:
    """The likeliest choices of one prompt, the best first; all in their order if all are wanted."""
    if count == len(choices):
        return list(choices)
    return sorted(choices, key=lambda choice: -choice.mean_logprob)[:count]
