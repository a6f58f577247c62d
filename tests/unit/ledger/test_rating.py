"""What tokens cost, and that no request costs more than was set aside."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.ledger.rating import is_rateable, rate, worst_case_nanousd
from headrace.spec.prices import ContextTier, Price, UnitPrices
from headrace.spec.settlements import Charge, TokenUsage, UnitCounts, one_request

amounts = st.integers(0, 10**8)
flat_prices = st.builds(
    Price,
    input_nanousd_per_million=amounts,
    cached_input_nanousd_per_million=amounts,
    output_nanousd_per_million=amounts,
    reasoning_nanousd_per_million=st.none() | amounts,
    draft_nanousd_per_million=st.none() | amounts,
    embedding_nanousd_per_million=st.none() | amounts,
    image_nanousd_per_million=st.none() | amounts,
)


@st.composite
def prices(draw: st.DrawFn) -> Price:
    starts = draw(st.lists(st.integers(0, 10**6), unique=True, max_size=3).map(sorted))
    tiers = tuple(ContextTier(start, draw(flat_prices)) for start in starts)
    return msgspec.structs.replace(draw(flat_prices), context_tiers=tiers)


def some_of(draw: st.DrawFn, most: int) -> int | None:
    return draw(st.none() | st.integers(0, most))


@st.composite
def usages(draw: st.DrawFn, prompt_max: int, output_max: int) -> TokenUsage:
    prompt, output = draw(st.integers(0, prompt_max)), draw(st.integers(0, output_max))
    return TokenUsage(
        prompt_tokens=prompt,
        cached_tokens=draw(st.integers(0, prompt)),
        completion_tokens=output,
        reasoning_tokens=some_of(draw, output),
        draft_tokens=some_of(draw, output_max),
        embedding_tokens=some_of(draw, prompt),
        image_tokens=some_of(draw, prompt),
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


@given(prices(), st.integers(0, 10**6), st.integers(0, 10**6), st.data())
def test_usage_within_the_limits_never_exceeds_the_worst_case(
    any_price: Price, prompt_max: int, output_max: int, data: st.DataObject
) -> None:
    usage = data.draw(usages(prompt_max, output_max))
    worst = worst_case_nanousd(any_price, prompt_max, output_max)
    charge = rate(any_price, usage, worst)
    assert charge.waived_nanousd == 0
    assert charge.amount_nanousd <= worst


@given(prices(), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
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


def test_each_class_is_charged_once_at_its_own_price() -> None:
    classes = Price(
        input_nanousd_per_million=10_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=30_000_000,
        reasoning_nanousd_per_million=20_000_000,
        draft_nanousd_per_million=2_000_000,
        embedding_nanousd_per_million=4_000_000,
        image_nanousd_per_million=50_000_000,
    )
    usage = TokenUsage(100, 40, 7, 5, 9, 10, 20)
    assert rate(classes, usage, 10**9) == Charge(
        input_nanousd=300,
        cached_input_nanousd=40,
        output_nanousd=60,
        reasoning_nanousd=100,
        draft_nanousd=18,
        embedding_nanousd=40,
        image_nanousd=1000,
    )


def test_a_class_without_a_price_or_a_count_stays_in_the_class_it_is_part_of() -> None:
    counted = TokenUsage(100, 40, 7, 5, 9, 10, 20)
    uncounted = TokenUsage(100, 40, 7)
    assert rate(price, counted, 10**9) == rate(price, uncounted, 10**9)


def test_cached_images_are_not_charged_as_images_too() -> None:
    dear = msgspec.structs.replace(price, image_nanousd_per_million=50_000_000)
    charge = rate(dear, TokenUsage(100, 90, 0, image_tokens=100), 10**9)
    assert (charge.image_nanousd, charge.cached_input_nanousd, charge.input_nanousd) == (500, 90, 0)


def test_the_length_of_the_prompt_decides_the_price_of_all_of_its_request() -> None:
    long = msgspec.structs.replace(
        price, input_nanousd_per_million=20_000_000, output_nanousd_per_million=45_000_000
    )
    tiered = msgspec.structs.replace(price, context_tiers=(ContextTier(100, long),))
    assert rate(tiered, TokenUsage(100, 0, 7), 10**9) == rate(price, TokenUsage(100, 0, 7), 10**9)
    assert rate(tiered, TokenUsage(101, 1, 7), 10**9) == rate(long, TokenUsage(101, 1, 7), 10**9)


def test_a_shorter_prompt_may_be_the_dearer_one_and_is_reserved_for() -> None:
    cheap = msgspec.structs.replace(
        price, input_nanousd_per_million=0, cached_input_nanousd_per_million=0
    )
    tiered = msgspec.structs.replace(price, context_tiers=(ContextTier(100, cheap),))
    assert worst_case_nanousd(tiered, 101, 0) >= rate(price, TokenUsage(100), 10**9).amount_nanousd


unit_prices = st.builds(
    UnitPrices, **dict.fromkeys(UnitPrices.__struct_fields__, st.none() | amounts)
)
unit_counts = st.builds(UnitCounts, *[st.integers(0, 10**6)] * 4)


@given(flat_prices, unit_prices, unit_counts, st.data())
def test_no_units_cost_more_than_the_most_that_was_set_aside(
    flat: Price, units: UnitPrices, most: UnitCounts, data: st.DataObject
) -> None:
    both = msgspec.structs.replace(flat, units=units)
    used = UnitCounts(*(data.draw(st.none() | st.integers(0, n or 0)) for n in most.counts()))
    reserved = worst_case_nanousd(both, 100, 100, most)
    charge = rate(both, data.draw(usages(100, 100)), reserved, used)
    assert charge.waived_nanousd == 0
    assert charge.amount_nanousd <= reserved


def test_each_unit_is_a_line_and_sound_is_rounded_once() -> None:
    units = UnitPrices(
        per_request_nanousd=2_000_000,
        per_image_nanousd=40_000_000,
        per_second_nanousd=100_001,
        per_character_nanousd=15_000,
    )
    both = msgspec.structs.replace(price, units=units)
    assert rate(both, TokenUsage(), 10**12, UnitCounts(1, 3, 1_500, 7)) == Charge(
        per_request_nanousd=2_000_000,
        per_image_nanousd=120_000_000,
        per_second_nanousd=150_002,  # 150,001.5
        per_character_nanousd=105_000,
    )
    assert both.shared(50).units == UnitPrices(
        per_request_nanousd=1_000_000,
        per_image_nanousd=20_000_000,
        per_second_nanousd=50_000,
        per_character_nanousd=7_500,
    )


def test_the_unknown_is_not_rated_at_0() -> None:
    free = Price(
        input_nanousd_per_million=0,
        cached_input_nanousd_per_million=0,
        output_nanousd_per_million=0,
        units=UnitPrices(per_second_nanousd=100),
    )
    heard, unheard, none = UnitCounts(1, 0, 5), UnitCounts(1, 0, None), one_request
    assert is_rateable(free, heard, tokens_told=False)
    assert not is_rateable(free, unheard, tokens_told=False)
    assert not is_rateable(free, unheard, tokens_told=True)
    assert not is_rateable(free, none, tokens_told=False)  # the price is not by what was done
    assert is_rateable(free, none, tokens_told=True)
    dear = msgspec.structs.replace(price, units=free.units)
    assert not is_rateable(dear, heard, tokens_told=False)  # its tokens cost something too
    assert is_rateable(dear, heard, tokens_told=True)
