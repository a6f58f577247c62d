"""From the texts that end a repetition for DRY to the tokens that have one of them."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from headrace.tokenizer.tokenizer import Tokenizer

default_breakers = ("\n", ":", '"', "*")  # llama.cpp's and others'
remembered_max = 64  # of texts' tokens: clients send the same ones again and again


class BreakerTokens:
    """One vocabulary, searched for texts. Memory: its tokens' bytes once more."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self._bytes = b"".join(tokens)
        self._ends = list(accumulate(map(len, tokens)))
        self._having = lru_cache(remembered_max)(self._search)

    def find(self, texts: Sequence[str]) -> tuple[int, ...]:
        """The tokens that have one of the texts in them, ascending."""
        return tuple(sorted({token_id for text in texts for token_id in self._having(text)}))

    def _search(self, text: str) -> tuple[int, ...]:
        wanted = text.encode()
        found: list[int] = []
        place = self._bytes.find(wanted)
        while place >= 0:
            token_id = bisect_right(self._ends, place)
            end = self._ends[token_id]
            if place + len(wanted) <= end:
                found.append(token_id)
                place = self._bytes.find(wanted, end)
            else:  # it reaches into the next token
                place = self._bytes.find(wanted, place + 1)
        return tuple(found)
