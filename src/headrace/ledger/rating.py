"""Price x tokens = amounts: the worst case at admission, the lines of a charge at the end.

    cached    =                     cached tokens x cached input price
    embedding =    what is embedded and not cached x embedding price
    image     = what is of an image and not cached x image price
    input     =           the rest of the prompt x input price
    reasoning =                  reasoning tokens x reasoning price
    output    =       the rest of the completion x output price
    draft     =             refused draft tokens x draft price
    units     =  requests, images, milliseconds, characters x their prices, a line each

Each line is rounded once, by `base.money`. Every token is in one line. Where a price has tiers for
longer prompts, the length of the prompt decides of all its lines.
"""

from headrace.base.money import cost_nanousd, divided
from headrace.spec.prices import Price, PriceVersion, UnitPrices, unit_price_names
from headrace.spec.settlements import (
    Charge,
    Settlement,
    TokenUsage,
    UnitCounts,
    UsageSource,
    one_request,
)

line_nanousd_max = 2**59  # eleven lines fit 64 bits, whatever an engine claims to have used
input_lines_max = 4
output_lines_max = 2
ms_per_s = 1000
nothing_reserved = 2**62  # after the fact nothing was set aside, so nothing is waived


def worst_case_nanousd(
    price: Price,
    prompt_tokens_max: int,
    output_tokens_max: int,
    units_max: UnitCounts = one_request,
) -> int:
    """The most that so much can cost: each token at the dearest class it can turn out to be.

    Refused drafts count as many as output tokens; what goes beyond is waived by `rate`. A prompt
    may turn out shorter, so every tier that it can fall in counts."""
    tokens_nanousd = max(
        _flat_worst_case(each, prompt_tokens_max, output_tokens_max)
        for each in reachable(price, prompt_tokens_max)
    )
    if price.units is None:  # nearly always
        return tokens_nanousd
    return tokens_nanousd + sum(unit_lines(price.units, units_max).values())


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


def unit_lines(prices: UnitPrices, units: UnitCounts) -> dict[str, int]:
    """The lines of what is not counted in tokens, by the names of a charge; unknown counts as 0."""
    amounts: dict[str, int] = {}
    for name, price, count in zip(unit_price_names, prices.amounts(), units.counts(), strict=True):
        if price and count:
            whole = price * count
            amount = divided(whole, ms_per_s) if name == "per_second_nanousd" else whole
            amounts[name] = min(line_nanousd_max, amount)
    return amounts


def is_rateable(price: Price, units: UnitCounts, *, tokens_told: bool) -> bool:
    """Whether all that a price asks for is known, so that nothing unknown is rated at 0.

    Without a count of tokens, units must be all that costs something, and there must be some."""
    if price.units is None:
        return tokens_told
    counts = [
        count
        for each, count in zip(price.units.amounts(), units.counts(), strict=True)
        if each is not None
    ]
    if None in counts:
        return False
    return tokens_told or (any(counts) and not has_token_prices(price))


def has_token_prices(price: Price) -> bool:
    """Whether any token costs anything."""
    return any(any(each.amounts()) for each in (price, *(t.price for t in price.context_tiers)))


def rated_late(version: PriceVersion, settlement: Settlement) -> Charge | None:
    """What a request is charged at a price that it got after the fact, when nothing is set aside
    any more; None where the price asks for what nobody knows."""
    is_told = settlement.source is not UsageSource.UNMETERED
    if not is_rateable(version.price, settlement.units, tokens_told=is_told):
        return None
    return rate(version.price, settlement.usage, nothing_reserved, settlement.units)


def rate(
    price: Price, usage: TokenUsage, reserved_nanousd: int, units: UnitCounts = one_request
) -> Charge:
    """The charge for what was used; whatever exceeds `reserved_nanousd` is waived.

    A class that nobody counted, or that has no price of its own, stays in the line it is part of.
    Cached tokens are taken as text first, since an image's are rarely kept apart."""
    unit_prices, price = price.units, price.of_prompt(usage.prompt_tokens)
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
    if unit_prices is not None:
        amounts |= unit_lines(unit_prices, units)
    return Charge(**amounts, waived_nanousd=max(0, sum(amounts.values()) - reserved_nanousd))


def line_nanousd(token_count: int, price_nanousd_per_million: int) -> int:
    """One line of a charge."""
    return min(line_nanousd_max, cost_nanousd(token_count, price_nanousd_per_million))
