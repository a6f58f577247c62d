"""A price book tried on what was used."""

from headrace.billing.trial import TrialRow, try_prices
from headrace.ledger.rating import rate
from headrace.spec.prices import Price
from headrace.spec.settlements import (
    Charge,
    Outcome,
    Settlement,
    TokenUsage,
    UsageSource,
    platform_tenant_id,
)

price = Price(
    input_nanousd_per_million=1_000_000,
    cached_input_nanousd_per_million=0,
    output_nanousd_per_million=2_000_000,
)


def settled(
    tenant_id: str, model: str, usage: TokenUsage, charged: int | None, percent: int = 100
) -> Settlement:
    return Settlement(
        request_id="r",
        tenant_id=tenant_id,
        project_id="prj",
        key_id="key",
        model=model,
        usage=usage,
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id=None if charged is None else "prb",
        charge=None if charged is None else Charge(input_nanousd=charged),
        settle_time=0.0,
        price_percent=percent,
    )


def unbounded(price: Price, settlement: Settlement) -> Charge:
    return rate(price, settlement.usage, 2**62, settlement.units)


def test_each_request_is_rated_as_it_would_have_been() -> None:
    requests = [
        settled("ten_a", "small", TokenUsage(10, 4, 3), 5),
        settled("ten_a", "small", TokenUsage(1, 0, 0), None),
        settled("ten_b", "large", TokenUsage(1, 0, 1), 70),
    ]
    assert try_prices(requests, {"small": price}, unbounded) == [
        TrialRow(
            tenant_id="ten_a",
            model="small",
            requests=2,
            charged_nanousd=5,
            tried_nanousd=6 + 6 + 1,
            unrated_requests=1,
        ),
        TrialRow(
            tenant_id="ten_b",
            model="large",
            requests=1,
            charged_nanousd=70,
            tried_nanousd=70,
            unrated_requests=0,
        ),
    ]


def test_the_price_that_was_paid_gives_what_was_paid_also_for_a_batch() -> None:
    usage = TokenUsage(7, 0, 5)
    half = rate(price.shared(50), usage, 2**62).amount_nanousd
    [row] = try_prices([settled("ten_a", "small", usage, half, 50)], {"small": price}, unbounded)
    assert row.tried_nanousd == row.charged_nanousd == half


def test_what_the_platform_bears_costs_nothing_at_any_price() -> None:
    own = settled(platform_tenant_id, "small", TokenUsage(7, 0, 5), 0)
    assert try_prices([own], {"small": price}, unbounded) == []
