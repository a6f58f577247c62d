"""What agreed terms take off an invoice, and what they add."""

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import InvalidRequest
from headrace.base.money import nanousd_per_cent, nanousd_per_usd
from headrace.billing.payable import payable_in
from headrace.billing.terms import adjustments_of, is_month, volume_discount
from headrace.spec.invoices import InvoiceLine, Party, Seller, TokenClass
from headrace.spec.terms import Terms, VolumeStep

dollar = nanousd_per_usd
november = (datetime.date(2026, 11, 1), datetime.date(2026, 11, 30))
some_days = (datetime.date(2026, 11, 2), datetime.date(2026, 11, 30))


def terms(**fields: object) -> Terms:
    agreed = Terms(id="trm_1", name="terms", create_time=0.0)
    return msgspec.structs.replace(agreed, **fields)


def line(amount: int, tokens: int = 1_000_000, model: str = "small") -> InvoiceLine:
    return InvoiceLine(
        model=model,
        token_class=TokenClass.INPUT,
        price_book_id="prb_1",
        requests=1,
        tokens=tokens,
        price_nanousd_per_million=None,
        amount_nanousd=amount,
    )


def test_free_tokens_go_first_then_the_discount_then_the_volume_then_the_minimum() -> None:
    agreed = terms(
        free_tokens={"small": 500_000, "unused": 9},
        discount_ppm=100_000,
        volume=(VolumeStep(40 * dollar, 500_000),),
        minimum_nanousd=70 * dollar,
    )
    found = adjustments_of([line(100 * dollar), line(7 * dollar, model="big")], agreed, november)
    assert [(each.name, each.amount_nanousd) for each in found] == [
        ("500,000 free tokens of small", -50 * dollar),
        ("Discount", -5_700_000_000),
        ("Volume discount", -5_650_000_000),
        ("Up to the monthly minimum", 24_350_000_000),
    ]


def test_terms_by_the_month_count_in_whole_months_alone() -> None:
    agreed = terms(
        free_tokens={"small": 10**9},
        volume=(VolumeStep(0, 500_000),),
        minimum_nanousd=dollar,
        discount_ppm=10_000,
    )
    [discount] = adjustments_of([line(100 * dollar)], agreed, some_days)
    assert (discount.name, discount.amount_nanousd, discount.share_ppm) == (
        "Discount",
        -dollar,
        10_000,
    )
    assert is_month((datetime.date(2028, 2, 1), datetime.date(2028, 2, 29)))
    assert not is_month((datetime.date(2028, 2, 1), datetime.date(2028, 2, 28)))
    assert not is_month((datetime.date(2026, 11, 1), datetime.date(2027, 11, 30)))


def test_nothing_agreed_changes_nothing() -> None:
    assert adjustments_of([line(dollar)], None, november) == ()
    assert adjustments_of([line(dollar)], terms(), november) == ()


shares = st.integers(0, 1_000_000)
agreements = st.builds(
    lambda discount, free, bounds, shares_, minimum: terms(
        discount_ppm=discount,
        free_tokens={"small": free},
        volume=tuple(map(VolumeStep, sorted(bounds), shares_)),
        minimum_nanousd=minimum,
    ),
    shares,
    st.integers(0, 10**7),
    st.lists(st.integers(0, 10**12), unique=True, max_size=3),
    st.lists(shares, min_size=3, max_size=3),
    st.integers(0, 10**12),
)


@given(agreements, st.lists(st.builds(line, st.integers(0, 10**12)), max_size=3))
def test_a_month_costs_at_least_its_minimum_and_at_most_that_or_the_list_price(
    agreed: Terms, lines: list[InvoiceLine]
) -> None:
    listed = sum(each.amount_nanousd for each in lines)
    found = adjustments_of(lines, agreed, november)
    owed = listed + sum(each.amount_nanousd for each in found)
    assert agreed.minimum_nanousd <= owed <= max(agreed.minimum_nanousd, listed)


@given(st.integers(0, 10**12), st.integers(0, 10**9))
def test_more_use_never_costs_less_by_the_volume(amount: int, more: int) -> None:
    steps = (VolumeStep(10**9, 100_000), VolumeStep(10**11, 900_000))
    assert amount - volume_discount(steps, amount) <= amount + more - volume_discount(
        steps, amount + more
    )


def test_steps_out_of_order_are_refused() -> None:
    for wrong in ((VolumeStep(5, 1), VolumeStep(5, 2)), (VolumeStep(5, 1), VolumeStep(4, 2))):
        with pytest.raises(ValueError, match="growing"):
            terms(volume=wrong)


seller = Seller(
    id="sel_1",
    name="seller",
    create_time=0.0,
    party=Party(name="Compute GmbH"),
    exchange_rates={"EUR": 920_000, "JPY": 150_500_000, "KWD": 307_000},
)


@pytest.mark.parametrize(
    ("currency", "amounts"),
    [
        ("EUR", (9_20, 1_75, 10_95, 10_03)),
        ("JPY", (1_505, 286, 1_791, 1_641)),  # no digits after the point; halves go to the even
        ("KWD", (3_070, 583, 3_653, 3_346)),
    ],
)
def test_amounts_add_up_in_the_buyers_currency(
    currency: str, amounts: tuple[int, int, int, int]
) -> None:
    found = payable_in(currency, seller, 10 * dollar, 190 * nanousd_per_cent, 1 * dollar)
    assert found is not None
    assert (found.net, found.tax, found.total, found.due) == amounts


def test_dollars_are_not_converted_and_a_rate_must_be_there() -> None:
    assert payable_in("", seller, 1, 1, 0) is None
    assert payable_in("USD", seller, 1, 1, 0) is None
    with pytest.raises(InvalidRequest, match="exchange_rates"):
        payable_in("CHF", seller, 1, 1, 0)


@pytest.mark.parametrize(
    ("since", "added"),
    [
        (datetime.date(2026, 1, 5), 30 * dollar),
        (november[0], 30 * dollar),
        (datetime.date(2026, 11, 21), 10 * dollar),
        (november[1], dollar),
        (datetime.date(2026, 12, 1), 0),
        (datetime.date(2027, 3, 1), 0),
    ],
)
def test_nobody_committed_to_days_before_they_came(since: datetime.date, added: int) -> None:
    found = adjustments_of([], terms(minimum_nanousd=30 * dollar), november, since)
    assert sum(each.amount_nanousd for each in found) == added
