"""Price x tokens = amounts: the worst case at admission, the lines of a charge at the end.

    input  = (prompt - cached) tokens x input price
    cached =           cached tokens x cached input price
    output =       completion tokens x output price

Each line is rounded once, by `base.money`.
"""

from headrace.base.money import cost_nanousd
from headrace.spec.prices import Price
from headrace.spec.settlements import Charge, TokenUsage

line_nanousd_max = 2**61  # three lines fit 64 bits, whatever an engine claims to have used


def worst_case_nanousd(price: Price, prompt_tokens_max: int, output_tokens_max: int) -> int:
    """The most that so many tokens can cost: the whole prompt at the dearer input class."""
    dearest = max(price.input_nanousd_per_million, price.cached_input_nanousd_per_million)
    input_nanousd = cost_nanousd(prompt_tokens_max, dearest)
    # Two lines, each rounded half up, can come to one more than their sum rounded once.
    rounding_nanousd = 1 if dearest else 0
    return (
        input_nanousd
        + rounding_nanousd
        + cost_nanousd(output_tokens_max, price.output_nanousd_per_million)
    )


def rate(price: Price, usage: TokenUsage, reserved_nanousd: int) -> Charge:
    """The charge for what was used; whatever exceeds `reserved_nanousd` is waived."""
    input_nanousd = line_nanousd(
        usage.prompt_tokens - usage.cached_tokens, price.input_nanousd_per_million
    )
    cached_nanousd = line_nanousd(usage.cached_tokens, price.cached_input_nanousd_per_million)
    output_nanousd = line_nanousd(usage.completion_tokens, price.output_nanousd_per_million)
    return Charge(
        input_nanousd=input_nanousd,
        cached_input_nanousd=cached_nanousd,
        output_nanousd=output_nanousd,
        waived_nanousd=max(0, input_nanousd + cached_nanousd + output_nanousd - reserved_nanousd),
    )


def line_nanousd(token_count: int, price_nanousd_per_million: int) -> int:
    """One line of a charge."""
    return min(line_nanousd_max, cost_nanousd(token_count, price_nanousd_per_million))
