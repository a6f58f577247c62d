"""DRY: the more of what was said just now would be said again, the less likely its next token is.

For each earlier place that ends as the sequence does, over `length` tokens, the token that came
there next would make the repetition longer. From `allowed_length` on its logit is lowered by

    multiplier * base ^ (length - allowed_length)        the longest such length counts

Tokens in `breakers` (line ends, quotes, roles of a chat) end a repetition. Only the last
`window_tokens` are searched, with `bytes.rfind`, so the cost does not depend on the vocabulary.
"""

from array import array
from collections.abc import Iterator

from headrace.engine.request import SamplingParams

window_tokens = 4096
length_max = 50  # a longer repetition is punished no more; bounds base ^ length
places_max = 256  # earlier ones are looked at no more; bounds the work of a loop
penalty_max = 1e6
token_bytes = 4


def dry_penalties(tokens: "array[int]", sampling: SamplingParams) -> dict[int, float]:
    """What to take off the logits of the tokens that would go on with a repetition."""
    allowed = max(1, sampling.dry_allowed_length)
    recent = tokens[-window_tokens:]
    breakers = sampling.dry_breakers
    if len(recent) <= allowed or any(token in breakers for token in recent[-allowed:]):
        return {}
    lengths: dict[int, int] = {}
    for end in _earlier_ends(recent, allowed):
        follower = recent[end]
        if follower not in breakers:
            length = _length_at(recent, end, allowed, breakers)
            lengths[follower] = max(length, lengths.get(follower, 0))
    return {
        token: min(penalty_max, sampling.dry_multiplier * sampling.dry_base ** (length - allowed))
        for token, length in lengths.items()
    }


def _earlier_ends(recent: "array[int]", allowed: int) -> Iterator[int]:
    """The places after the latest earlier occurrences of the last `allowed` tokens."""
    data = recent.tobytes()
    tail = data[-allowed * token_bytes :]
    last = len(data) - token_bytes  # an occurrence may overlap the tail, not be it
    count = 0
    while count < places_max and (found := data.rfind(tail, 0, last)) >= 0:
        if found % token_bytes == 0:
            yield found // token_bytes + allowed
            count += 1
        last = found + len(tail) - 1


def _length_at(recent: "array[int]", end: int, allowed: int, breakers: frozenset[int]) -> int:
    """How many tokens before `end` are those at the sequence's end."""
    length = allowed
    while length < min(end, length_max):
        token = recent[end - length - 1]
        if token != recent[-length - 1] or token in breakers:
            break
        length += 1
    return length
