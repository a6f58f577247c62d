"""Money is exact, and rounds in one place."""

from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.money import cost_nanousd, format_usd, parse_usd


@given(st.integers(0, 10**9), st.integers(0, 10**12))
def test_cost_is_the_exact_product_rounded_half_to_even(tokens: int, price: int) -> None:
    exact = Decimal(tokens * price) / Decimal(1_000_000)
    assert cost_nanousd(tokens, price) == int(exact.quantize(Decimal(1), ROUND_HALF_EVEN))


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_halves_go_to_the_even_neighbour(tokens: int, expected: int) -> None:
    assert cost_nanousd(tokens, 500_000) == expected


@given(st.integers(-(10**18), 10**18))
def test_what_is_written_reads_back(amount: int) -> None:
    assert parse_usd(format_usd(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.00"), (1_500_000_000, "1.50"), (-1, "-0.000000001"), (10_250_000, "0.01025")],
)
def test_amounts_show_every_digit_that_matters(amount: int, text: str) -> None:
    assert format_usd(amount) == text


@pytest.mark.parametrize("text", ["", "ten", "1,5", "nan", "inf", "$1"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        parse_usd(text)
