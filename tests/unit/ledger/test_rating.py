"""What tokens cost, and that no request costs more than was set aside."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.ledger.rating import rate, worst_case_nanousd
from headrace.spec.prices import Price
from headrace.spec.settlements import Charge, TokenUsage

prices = st.builds(
    Price,
    input_nanousd_per_million=st.integers(0, 10**8),
    cached_input_nanousd_per_million=st.integers(0, 10**8),
    output_nanousd_per_million=st.integers(0, 10**8),
)
price = Price(
    input_nanousd_per_million=10_000_000,
    cached_input_nanousd_per_million=1_000_000,
    output_nanousd_per_million=30_000_000,
)


def test_cached_tokens_are_not_charged_as_input_too() -> None:
    assert rate(price, TokenUsage(100, 40, 7), 10**9) == Charge(
        input_nanousd=600, cached_input_nanousd=40, output_nanousd=210
    )


@given(prices, st.integers(0, 10**6), st.integers(0, 10**6), st.data())
def test_usage_within_the_limits_never_exceeds_the_worst_case(
    any_price: Price, prompt_max: int, output_max: int, data: st.DataObject
) -> None:
    prompt = data.draw(st.integers(0, prompt_max))
    usage = TokenUsage(
        prompt, data.draw(st.integers(0, prompt)), data.draw(st.integers(0, output_max))
    )
    worst = worst_case_nanousd(any_price, prompt_max, output_max)
    charge = rate(any_price, usage, worst)
    assert charge.waived_nanousd == 0
    assert charge.amount_nanousd <= worst


@given(prices, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_usage_beyond_the_limits_is_waived_and_said(
    any_price: Price, prompt: int, output: int, reserved: int
) -> None:
    charge = rate(any_price, TokenUsage(prompt, 0, output), reserved)
    assert charge.amount_nanousd <= reserved
    if charge.waived_nanousd:
        assert charge.amount_nanousd == reserved


def test_a_free_model_reserves_nothing() -> None:
    free = Price(
        input_nanousd_per_million=0,
        cached_input_nanousd_per_million=0,
        output_nanousd_per_million=0,
    )
    assert worst_case_nanousd(free, 10**6, 10**6) == 0


def test_two_lines_that_both_round_up_are_covered() -> None:
    even = Price(
        input_nanousd_per_million=600_000,
        cached_input_nanousd_per_million=600_000,
        output_nanousd_per_million=0,
    )
    charge = rate(even, TokenUsage(2, 1, 0), worst_case_nanousd(even, 2, 0))
    assert (charge.amount_nanousd, charge.waived_nanousd) == (2, 0)
