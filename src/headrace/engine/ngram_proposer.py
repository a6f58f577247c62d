"""Guesses an output's next tokens from its own past: what followed the last few tokens before.

Answers repeat their prompt (code, quotes, tables) and themselves. The search is `bytes.rfind`: it
keeps no index, costs microseconds at a few thousand tokens, and sees no other request.
"""

from headrace.engine.sequence import Sequence

long_match_tokens = 6
short_match_tokens = 3  # fewer match by chance
token_bytes = 4


class NgramProposer:
    """Continues the latest earlier occurrence of the sequence's tail, the longer tail first."""

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        """Up to `count` tokens that may come next; empty if the tail is new."""
        data = sequence.tokens.tobytes()
        start = _after_match(data, short_match_tokens)
        if start is None:
            return []
        longer = _after_match(data, long_match_tokens)
        start = start if longer is None else longer
        tokens, total = sequence.tokens, len(sequence.tokens)
        drafts: list[int] = []
        for place in range(start, start + count):  # past the end it goes on with its own drafts
            drafts.append(tokens[place] if place < total else drafts[place - total])
        return drafts


def _after_match(data: bytes, length: int) -> int | None:
    """The place after the last earlier occurrence of the last `length` tokens."""
    size = length * token_bytes
    if len(data) <= size:
        return None
    tail = data[-size:]
    end = len(data) - token_bytes  # an occurrence may overlap the tail, not be it
    while (found := data.rfind(tail, 0, end)) >= 0:
        if found % token_bytes == 0:
            return found // token_bytes + length
        end = found + size - 1
    return None
