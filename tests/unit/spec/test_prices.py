"""Which price is in force."""

import msgspec
import pytest

from headrace.spec.prices import ContextTier, Price, PriceBook, price_at
from headrace.spec.priority import Priority


def price(amount: int) -> Price:
    return Price(
        input_nanousd_per_million=amount,
        cached_input_nanousd_per_million=amount,
        output_nanousd_per_million=amount,
    )


def book(name: str, effective: float, made: float = 0.0, **amounts: int) -> PriceBook:
    return PriceBook(
        id=name,
        name=name,
        create_time=made,
        effective_time=effective,
        prices={model: price(amount) for model, amount in amounts.items()},
    )


books = [book("one", 10, a=1, b=2), book("two", 20, a=3), book("three", 20, made=5.0, a=4)]


@pytest.mark.parametrize(
    ("model", "time_s", "book_id", "amount"),
    [("a", 10, "one", 1), ("a", 19.9, "one", 1), ("b", 99, "one", 2), ("a", 20, "three", 4)],
)
def test_the_latest_book_in_force_that_names_the_model_decides(
    model: str, time_s: float, book_id: str, amount: int
) -> None:
    found = price_at(books, model, time_s)
    assert found is not None
    assert (found.price_book_id, found.price) == (book_id, price(amount))


@pytest.mark.parametrize(("model", "time_s"), [("a", 9.9), ("c", 99)])
def test_a_model_that_no_book_names_yet_has_no_price(model: str, time_s: float) -> None:
    assert price_at(books, model, time_s) is None


@pytest.mark.parametrize("amount", [-1, 10**18 + 1])
def test_a_price_out_of_bounds_cannot_be_made(amount: int) -> None:
    with pytest.raises(ValueError, match="a price is at least 0 and at most"):
        price(amount)


def test_a_tenants_own_book_goes_before_everybodys_newer_one() -> None:
    own = msgspec.structs.replace(book("own", 5, a=9), parent_id="ten_a")
    for tenant_id, book_id in (("ten_a", "own"), ("ten_b", "three"), ("", "three")):
        found = price_at([*books, own], "a", 99, tenant_id)
        assert found is not None
        assert found.price_book_id == book_id


def test_context_tiers_begin_at_growing_numbers_and_have_none_themselves() -> None:
    tiers = (ContextTier(10, price(2)), ContextTier(20, price(3)))
    tiered = msgspec.structs.replace(price(1), context_tiers=tiers)
    found = [tiered.of_prompt(count).input_nanousd_per_million for count in (10, 11, 20, 21)]
    assert found == [1, 2, 2, 3]
    assert tiered.shared(50).of_prompt(21) == price(1)
    for wrong in (tiers[::-1], (tiers[0], tiers[0]), (ContextTier(1, tiered),)):
        with pytest.raises(ValueError, match="tier"):
            msgspec.structs.replace(price(1), context_tiers=wrong)


def test_the_priority_and_the_region_have_their_shares() -> None:
    own = msgspec.structs.replace(
        books[0], priority_percent={"interactive": 150, "batch": 40}, region_percent={"eu": 110}
    )
    assert own.percent_of(Priority.INTERACTIVE, "eu") == 165
    assert own.percent_of(Priority.STANDARD, "eu") == 110
    assert own.percent_of(Priority.BATCH, "") == 40
    assert books[0].percent_of(Priority.BATCH, "us") == 50
    with pytest.raises(ValueError, match="percent"):
        msgspec.structs.replace(books[0], region_percent={"eu": -1})
