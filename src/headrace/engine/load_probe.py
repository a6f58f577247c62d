"""Whether a model that was just loaded reads a plain text better than chance.

Numbers that are finite one by one can still be another model's: matrices of another file, a
tokenizer of another family, rows in the wrong order. What comes of them is noise, and noise shows
after a few tokens: a model that says less about a plain text than guessing among all its tokens
would. A short look is always taken, a longer one where it fits the budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.clock import Clock
from headrace.base.errors import ModelFileError
from headrace.engine.core import EngineCore
from headrace.engine.request import EngineRequest, SamplingParams

guessing_margin = 1.1  # over the perplexity of guessing among all tokens
short_tokens = 8
probe_tokens_max = 64
not_finite_text = (
    "The model computes numbers that are not finite: its weights are damaged, or were converted "
    "wrongly. Fetch it again, or use another."
)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a look found."""

    perplexity: float
    token_count: int


def probe(core: EngineCore, clock: Clock, tokens: Sequence[int], budget_s: float) -> Probe:
    """Let an engine read the beginning of a text; ModelFileError if what it computes is no number.

    Cost: two steps, the second of them at most `budget_s` by what the first one took."""
    started_s = clock.monotonic_s()
    losses = _losses(core, tokens[:short_tokens])
    token_s = (clock.monotonic_s() - started_s) / short_tokens
    longest = min(len(tokens), probe_tokens_max)
    count = longest if token_s * longest <= budget_s else int(budget_s / token_s)
    if count > short_tokens:
        losses = _losses(core, tokens[:count])
    return Probe(math.exp(math.fsum(losses) / len(losses)), len(losses) + 1)


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """ModelFileError if a tokenizer makes of a text what the model has no embedding of.

    That it has more tokens is no fault: some that only images have lie beyond the embedding."""
    most = max(tokens, default=0)
    if most >= vocab_size:
        raise ModelFileError(
            f"The tokenizer makes token {most} of a plain text, and the model has {vocab_size}: it "
            "belongs to another model.",
            field="tokenizer",
        )


def is_noise(perplexity: float, vocab_size: int) -> bool:
    """Whether a model is further from a text than guessing among all tokens is."""
    return not perplexity < guessing_margin * vocab_size


def noise_text(perplexity: float, vocab_size: int) -> str:
    """What to tell of such a model."""
    return (
        f"The model is further from a plain text than guessing among all {vocab_size} tokens "
        f"would be (perplexity {perplexity:.3g}): its weights or its tokenizer are damaged, or "
        "belong to another model."
    )


def _losses(core: EngineCore, tokens: Sequence[int]) -> list[float]:
    """What each token but the first costs after those before it, in nats."""
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=0)
    core.submit(EngineRequest("probe", tuple(tokens), sampling))
    losses: list[float] = []
    while core.has_work():
        for output in core.step():
            if output.error is not None:
                raise ModelFileError(not_finite_text, field="weights")
            losses += [-token.logprob for token in output.prompt_logprobs]
    return losses
