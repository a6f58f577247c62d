"""What an API's answers use, and by which numbers that is known."""

from enum import Enum

import msgspec

from headrace.spec.settlements import TokenUsage


class Metering(Enum):
    """What a route's requests are charged for."""

    GENERATES = "generates"  # prompt and output
    EMBEDS = "embeds"  # the prompt, as embedding tokens
    READS = "reads"  # the prompt
    RELAYS = "relays"  # what the engine reports; an answer that tells nothing is one request
    NOTHING = "nothing"

    def of(self, reported: TokenUsage) -> TokenUsage:
        """What counts of an engine's report."""
        match self:
            case Metering.NOTHING:
                return TokenUsage()
            case Metering.EMBEDS:
                return msgspec.structs.replace(
                    prompt_of(reported), embedding_tokens=reported.prompt_tokens
                )
            case Metering.READS:
                return prompt_of(reported)
            case Metering.GENERATES | Metering.RELAYS:
                return reported


def prompt_of(reported: TokenUsage) -> TokenUsage:
    """The prompt's part of a report."""
    return msgspec.structs.replace(
        reported, completion_tokens=0, reasoning_tokens=None, draft_tokens=None
    )
