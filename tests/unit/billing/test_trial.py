"""A price book tried on what was used."""

from headrace.billing.trial import TrialRow, UsedRequest, try_prices
from headrace.ledger.rating import rate
from headrace.spec.prices import Price
from headrace.spec.settlements import Charge, TokenUsage

price = Price(
    input_nanousd_per_million=1_000_000,
    cached_input_nanousd_per_million=0,
    output_nanousd_per_million=2_000_000,
)


def unbounded(price: Price, usage: TokenUsage) -> Charge:
    return rate(price, usage, 2**62)


def test_each_request_is_rated_as_it_would_have_been() -> None:
    requests = [
        UsedRequest("ten_a", "small", TokenUsage(10, 4, 3), 5),
        UsedRequest("ten_a", "small", TokenUsage(1, 0, 0), None),
        UsedRequest("ten_b", "large", TokenUsage(1, 0, 1), 70),
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
