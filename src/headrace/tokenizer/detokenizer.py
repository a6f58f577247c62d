"""Tokens to text as they come, never half a character.

Tokens are bytes: a character may span several. Bytes wait until their character is complete; what
can never be UTF-8 becomes U+FFFD as soon as that is certain, what is unfinished only at the end.
"""

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenBytes(Protocol):
    """What of a tokenizer this needs."""

    def text_bytes(self, token_id: int) -> bytes:
        """A token's bytes in an answer; none for control tokens and ids that do not exist."""
        ...


class IncrementalDetokenizer:
    """One answer's text; any cutting into pushes gives the same text in all."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The characters that these tokens complete; may be empty. Cost: O(bytes of the tokens)."""
        text_bytes = self._tokenizer.text_bytes
        return self._decoder.decode(b"".join([text_bytes(token_id) for token_id in ids]))

    def finish(self) -> str:
        """What was waiting: empty, or U+FFFD for a character that was never finished."""
        return self._decoder.decode(b"", final=True)
