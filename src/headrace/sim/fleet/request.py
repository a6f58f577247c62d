"""One simulated request: prompts are segments with identities, because only sharing matters.

    prompt = [system prompt of group 7, 6000 tokens][this question, 1200 tokens]

Two prompts share a prefix as far as their segments are the same ones in the same order. A segment's
identity names its content; the router and the engines see chained keys, so that equal content
after different beginnings is not taken for shared, as with a real block hash.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from headrace.spec.priority import Priority


class Segment(NamedTuple):
    """A stretch of a prompt that other prompts may have too."""

    content: int  # identity; equal ones are equal texts
    tokens: int


class Outcome(StrEnum):
    """How a request ended, for its caller."""

    __hash__ = str.__hash__  # an enum's own is a call, and each request is counted several times

    FINISHED = "finished"
    FAILED = "failed"  # no replica answered, or the one that did broke after its first token
    REFUSED = "refused"  # no money, no room
    LEFT = "left"  # the caller went away


finished = Outcome.FINISHED  # found sooner than an enum's member


class SimRequest(msgspec.Struct, eq=False):
    """What a caller asks, and what became of it."""

    id: int
    deployment: int  # index
    tenant: int  # index
    arrival_s: float
    segments: tuple[Segment, ...]
    keys: tuple[int, ...]  # of its prompt's beginnings, a segment each; see `prefix_keys`
    prompt_tokens: int
    output_tokens: int  # what the model will say
    max_tokens: int  # what the caller allows; all that anybody but the engine knows
    first_token_s: float = -1.0
    end_s: float = -1.0
    longest_gap_s: float = 0.0  # between two of its tokens, where the engine model knows it
    cached_tokens: int = 0
    produced_tokens: int = 0
    attempts: int = 0
    outcome: Outcome | None = None
    session: object = None  # of a traffic source that waits for the answer
    priority: Priority = Priority.STANDARD


answer_content = 0  # of the segment that a conversation's next prompt has for an answer


def prefix_keys(segments: tuple[Segment, ...], tenant: int) -> tuple[int, ...]:
    """A key for each prefix that ends with a segment: equal for a tenant's equal beginnings."""
    key = tenant  # hashes of integers are the same in each run
    keys = []
    for content, tokens in segments:
        key = hash((key, content, tokens))
        keys.append(key)
    return tuple(keys)
