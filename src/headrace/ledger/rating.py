"""Price x tokens = amounts: the worst case at admission, the lines of a charge at the end.

    cached    =                     cached tokens x cached input price
    embedding =    what is embedded and not cached x embedding price
    image     = what is of an image and not cached x image price
    input     =           the rest of the prompt x input price
    reasoning =                  reasoning tokens x reasoning price
    output    =       the rest of the completion x output price
    draft     =             refused draft tokens x draft price

Each line is rounded once, by `base.money`. Every token is in one line. Where a price has tiers for
longer prompts, the length of the prompt decides of all its lines.
"""

from headrace.base.money import cost_nanousd
from headrace.spec.prices import Price
from headrace.spec.settlements import Charge, TokenUsage

line_nanousd_max = 2**60  # seven lines fit 64 bits, whatever an engine claims to have used
input_lines_max = 4
output_lines_max = 2


def worst_case_nanousd(price: Price, prompt_tokens_max: int, output_tokens_max: int) -> int:
    """The most that so many tokens can cost: each at the dearest class it can turn out to be.

    Refused drafts count as many as output tokens; what goes beyond is waived by `rate`. A prompt
    may turn out shorter, so every tier that it can fall in counts."""
    return max(
        _flat_worst_case(each, prompt_tokens_max, output_tokens_max)
        for each in reachable(price, prompt_tokens_max)
    )


def output_nanousd_per_million_max(price: Price, prompt_tokens_max: int) -> int:
    """The most that an output token can turn out to cost, its refused drafts with it."""
    return max(
        max(each.output_nanousd_per_million, each.reasoning) + each.draft
        for each in reachable(price, prompt_tokens_max)
    )


def reachable(price: Price, prompt_tokens_max: int) -> list[Price]:
    """The prices that a prompt of at most so many tokens can turn out to have."""
    longer = [
        tier.price for tier in price.context_tiers if prompt_tokens_max > tier.over_prompt_tokens
    ]
    return [price, *longer]


def _flat_worst_case(price: Price, prompt_tokens_max: int, output_tokens_max: int) -> int:
    """The same at a price without tiers."""
    dearest_input = max(
        price.input_nanousd_per_million,
        price.cached_input_nanousd_per_million,
        price.embedding,
        price.image,
    )
    dearest_output = max(price.output_nanousd_per_million, price.reasoning)
    return (
        class_worst_case(prompt_tokens_max, dearest_input, input_lines_of(price))
        + class_worst_case(output_tokens_max, dearest_output, output_lines_of(price))
        + cost_nanousd(output_tokens_max, price.draft)
    )


def class_worst_case(token_count: int, dearest: int, line_count: int) -> int:
    """Tokens at one price, in however many lines: each line may be rounded half up."""
    rounding_nanousd = line_count - 1 if dearest else 0
    return cost_nanousd(token_count, dearest) + rounding_nanousd


def input_lines_of(price: Price) -> int:
    """Into how many lines a prompt can fall."""
    own = (price.embedding_nanousd_per_million, price.image_nanousd_per_million)
    return input_lines_max - own.count(None)


def output_lines_of(price: Price) -> int:
    """Into how many lines a completion can fall."""
    return output_lines_max - (price.reasoning_nanousd_per_million is None)


def rate(price: Price, usage: TokenUsage, reserved_nanousd: int) -> Charge:
    """The charge for what was used; whatever exceeds `reserved_nanousd` is waived.

    A class that nobody counted, or that has no price of its own, stays in the line it is part of.
    Cached tokens are taken as text first, since an image's are rarely kept apart."""
    price = price.of_prompt(usage.prompt_tokens)
    fresh = usage.prompt_tokens - usage.cached_tokens
    image = 0 if price.image_nanousd_per_million is None else usage.image_tokens or 0
    embedding = 0 if price.embedding_nanousd_per_million is None else usage.embedding_tokens or 0
    reasoning = 0 if price.reasoning_nanousd_per_million is None else usage.reasoning_tokens or 0
    image = min(image, fresh)
    embedding = min(embedding, fresh - image)
    lines = {
        "input_nanousd": (fresh - image - embedding, price.input_nanousd_per_million),
        "cached_input_nanousd": (usage.cached_tokens, price.cached_input_nanousd_per_million),
        "output_nanousd": (usage.completion_tokens - reasoning, price.output_nanousd_per_million),
        "reasoning_nanousd": (reasoning, price.reasoning),
        "draft_nanousd": (usage.draft_tokens or 0, price.draft),
        "embedding_nanousd": (embedding, price.embedding),
        "image_nanousd": (image, price.image),
    }
    amounts = {name: line_nanousd(count, each) for name, (count, each) in lines.items() if count}
    return Charge(**amounts, waived_nanousd=max(0, sum(amounts.values()) - reserved_nanousd))


def line_nanousd(token_count: int, price_nanousd_per_million: int) -> int:
    """One line of a charge."""
    return min(line_nanousd_max, cost_nanousd(token_count, price_nanousd_per_million))
