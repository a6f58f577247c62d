"""Usage as engines report it, from whichever kind of engine and API, in our own terms.

    chat, text, embeddings    prompt_tokens, completion_tokens, their `_details`
    images, speech to text    input_tokens, output_tokens, their `_details` (also `_token_details`)
    rerankers                 total_tokens alone
    transcriptions by time    type "duration", seconds: no tokens

A class that an engine does not name is None, which is not 0.
"""

import msgspec

from headrace.spec.settlements import TokenUsage


class InputDetails(msgspec.Struct, frozen=True):
    """The part of an engine's prompt details that counts."""

    cached_tokens: int | None = None
    image_tokens: int | None = None


class OutputDetails(msgspec.Struct, frozen=True):
    """The part of an engine's completion details that counts."""

    reasoning_tokens: int | None = None
    rejected_prediction_tokens: int | None = None  # drafts that were refused


class ReportedUsage(msgspec.Struct, frozen=True):
    """Usage as an engine reports it."""

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = 0
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    reasoning_tokens: int | None = None  # SGLang's place for it
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None
    input_token_details: InputDetails | None = None
    type: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it tells tokens at all."""
        return self.type != "duration"

    def tokens(self) -> TokenUsage:
        """The same as our value; the count of a part above the whole's is cut to it."""
        completion_tokens = max(0, self.completion_tokens or self.output_tokens or 0)
        total_tokens = self.total_tokens or 0
        prompt_tokens = max(
            0, self.prompt_tokens or self.input_tokens or total_tokens - completion_tokens
        )
        given = (
            self.prompt_tokens_details
            or self.input_tokens_details
            or self.input_token_details
            or InputDetails()
        )
        made = self.completion_tokens_details or self.output_tokens_details
        if made is None and self.reasoning_tokens is None:
            reasoning_tokens = refused_tokens = None
        else:
            made = made or OutputDetails()
            reasoning_tokens = made.reasoning_tokens
            if reasoning_tokens is None:
                reasoning_tokens = self.reasoning_tokens
            refused_tokens = made.rejected_prediction_tokens
        return TokenUsage(
            prompt_tokens,
            within(given.cached_tokens or 0, prompt_tokens),
            completion_tokens,
            reasoning_tokens=part(reasoning_tokens, completion_tokens),
            draft_tokens=None if refused_tokens is None else max(0, refused_tokens),
            image_tokens=part(given.image_tokens, prompt_tokens),
        )


def part(count: int | None, whole: int) -> int | None:
    """A part of a whole; None where nobody counted it."""
    return None if count is None else within(count, whole)


def within(count: int, whole: int) -> int:
    """A count cut to what it can be."""
    return min(max(0, count), whole)
