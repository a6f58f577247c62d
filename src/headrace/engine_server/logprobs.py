"""Log-probabilities of an answer's tokens: held until their text is sent, then listed.

A token belongs to an answer if its text begins before the answer ends: what a stop string cut off
has none, and streamed and unstreamed answers list the same tokens.
"""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from headrace.engine_server.messages import WireLogprobs
from headrace.protocol.responses import (
    ChatLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)
from headrace.tokenizer.tokenizer import Tokenizer


class PlacedToken(NamedTuple):
    """An output token, where its text begins, and the engine's numbers for it."""

    start: int  # characters of the answer before it
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, log-probability), the likeliest first


class HeldTokens:
    """Keeps tokens until the text in which they begin is sent."""

    def __init__(self) -> None:
        self._held: deque[PlacedToken] = deque()
        self._sent_characters = 0

    def add(self, token: PlacedToken) -> None:
        """Take in the next token of the output."""
        self._held.append(token)

    def release(self, text: str) -> tuple[PlacedToken, ...]:
        """The tokens that begin in the text that is sent now, or before it."""
        self._sent_characters += len(text)
        released = []
        while self._held and self._held[0].start < self._sent_characters:
            released.append(self._held.popleft())
        return tuple(released)

    def release_all(self) -> tuple[PlacedToken, ...]:
        """The tokens that are left when an answer ends by itself."""
        released = tuple(self._held)
        self._held.clear()
        return released


def chat_logprobs(tokens: Sequence[PlacedToken], tokenizer: Tokenizer) -> ChatLogprobs:
    """Tokens as a chat's answer lists them."""

    def entry(token_id: int, logprob: float) -> TopLogprob:
        data = tokenizer.token_bytes(token_id)
        return TopLogprob(data.decode(errors="replace"), logprob, list(data))

    content = []
    for token in tokens:
        own = entry(token.token_id, token.logprob)
        top = [entry(token_id, logprob) for token_id, logprob in token.top]
        content.append(TokenLogprob(own.token, own.logprob, own.bytes, top))
    return ChatLogprobs(content)


def text_logprobs(
    tokens: Sequence[PlacedToken],
    tokenizer: Tokenizer,
    top_count: int,
    offset_characters: int = 0,
) -> TextLogprobs:
    """Tokens as a text completion lists them; the token itself always is among its likeliest."""

    def text_of(token_id: int) -> str:
        return tokenizer.token_bytes(token_id).decode(errors="replace")

    top: list[dict[str, float] | None] = [
        {text_of(i): logprob for i, logprob in reversed((*t.top, (t.token_id, t.logprob)))}
        for t in tokens
    ]
    return TextLogprobs(
        text_offset=[offset_characters + token.start for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        tokens=[text_of(token.token_id) for token in tokens],
        top_logprobs=top if top_count else None,
    )


def prompt_logprobs(
    token_ids: Sequence[int], known: Sequence[WireLogprobs], tokenizer: Tokenizer
) -> PromptLogprobs:
    """For each token of a prompt, itself and the likeliest in its place; None for the first."""
    listed: PromptLogprobs = [None]
    for token_id, (own, top) in zip(token_ids[1:], known, strict=False):
        ranks = {candidate: rank for rank, (candidate, _) in enumerate(top, start=1)}
        values = {**dict(top), token_id: own}
        listed.append(
            {
                str(candidate): PromptLogprob(
                    logprob,
                    ranks.get(candidate),
                    tokenizer.token_bytes(candidate).decode(errors="replace"),
                )
                for candidate, logprob in values.items()
            }
        )
    return listed


def echoed_logprobs(
    token_ids: Sequence[int],
    known: Sequence[WireLogprobs],
    answer: TextLogprobs,
    tokenizer: Tokenizer,
) -> TextLogprobs:
    """The columns of an echoed prompt's tokens before those of its answer."""

    def text_of(token_id: int) -> str:
        return tokenizer.token_bytes(token_id).decode(errors="replace")

    texts = [text_of(token_id) for token_id in token_ids]
    offsets = [0, *accumulate(len(text) for text in texts)][:-1]
    values = [None, *(own for own, _ in known)]
    tops: list[dict[str, float] | None] = [None]
    tops += [{text_of(token_id): value for token_id, value in top} for _, top in known]
    return TextLogprobs(
        text_offset=offsets + answer.text_offset,
        token_logprobs=[*values, *answer.token_logprobs],
        tokens=texts + answer.tokens,
        top_logprobs=None if answer.top_logprobs is None else [*tops, *answer.top_logprobs],
    )
