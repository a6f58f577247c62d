"""Stop strings in the engine process, so that no token after one is computed.

The HTTP process cuts the text (`choice_text.py`); here the same tokens go through the same
detokenizer and the same matcher, for the one question whether the output has ended.
"""

from headrace.engine_server.messages import Submit, Vocabulary, frame_bytes_max
from headrace.tokenizer.detokenizer import IncrementalDetokenizer, TokenBytes
from headrace.tokenizer.stop_matcher import StopMatcher
from headrace.tokenizer.tokenizer import Tokenizer

frame_share = 0.5  # of a frame, that the texts may fill: each has some bytes around it
text_overhead_bytes = 5  # at most, of msgpack


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary | None:
    """All tokens of a model as they are sent; None if they are more than a frame takes.

    Without them stop strings end outputs all the same, some steps later. Cost: O(vocabulary)."""
    ids = range(tokenizer.vocab_size)
    texts = [tokenizer.token_bytes(token_id) for token_id in ids]
    if sum(len(text) + text_overhead_bytes for text in texts) > frame_share * frame_bytes_max:
        return None
    control_ids = [token_id for token_id in ids if not tokenizer.text_bytes(token_id)]
    return Vocabulary(texts, control_ids)


class TokenTexts:
    """The model's tokens as text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._texts = vocabulary.texts
        self._control_ids = frozenset(vocabulary.control_ids)

    def end_of(self, message: Submit) -> "StopStringEnd | None":
        """What ends the outputs of a request; None if it has no stop strings."""
        if not message.stop_strings:
            return None
        hidden = frozenset[int]()
        if message.shown_ids is not None:
            hidden = self._control_ids.difference(message.shown_ids)
        shown = _ShownTexts(self._texts, hidden)
        return StopStringEnd(shown, StopMatcher(message.stop_strings), message.min_tokens)


class _ShownTexts:
    """What one request's answers show of tokens."""

    def __init__(self, texts: list[bytes], hidden_ids: frozenset[int]) -> None:
        self._texts = texts
        self._hidden_ids = hidden_ids

    def text_bytes(self, token_id: int) -> bytes:
        """A token's bytes in an answer; none for hidden tokens and ids that do not exist."""
        if token_id in self._hidden_ids or token_id >= len(self._texts):
            return b""
        return self._texts[token_id]


class StopStringEnd:
    """Ends one output with the token that completes a stop string (an `OutputEnd`)."""

    def __init__(self, texts: TokenBytes, matcher: StopMatcher, min_tokens: int) -> None:
        """In the first `min_tokens` nothing is looked for."""
        self._texts = texts
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._count = 0
        self._detokenizer = IncrementalDetokenizer(texts)

    def is_reached_by(self, token_id: int) -> bool:
        """Take the output's next token; whether the output ends with it."""
        self._count += 1
        text = self._detokenizer.push((token_id,))
        if self._count <= self._min_tokens:
            return False
        return self._matcher.push(text).matched is not None

    def fresh(self) -> "StopStringEnd":
        """The same for another output, which is still empty."""
        return StopStringEnd(self._texts, self._matcher.fresh(), self._min_tokens)
