"""Usage and charges that contradict themselves cannot be made."""

import pytest

from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource


def settlement(price_book_id: str | None, charge: Charge | None) -> Settlement:
    return Settlement(
        request_id="r",
        tenant_id="t",
        project_id="p",
        key_id="k",
        model="m",
        usage=TokenUsage(),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id=price_book_id,
        charge=charge,
        settle_time=0.0,
    )


@pytest.mark.parametrize("counts", [(-1, 0, 0), (1, 2, 0), (1, -1, 0), (1, 0, -1)])
def test_impossible_token_counts_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="token counts"):
        TokenUsage(*counts)


def test_an_unrated_settlement_has_no_amount_rather_than_zero() -> None:
    assert settlement(None, None).amount_nanousd is None
    assert settlement("book", Charge()).amount_nanousd == 0


@pytest.mark.parametrize(("book", "charge"), [(None, Charge()), ("book", None)])
def test_a_charge_comes_with_its_price_book(book: str | None, charge: Charge | None) -> None:
    with pytest.raises(ValueError, match="price book"):
        settlement(book, charge)


def test_the_amount_is_the_lines_less_what_is_waived() -> None:
    charge = Charge(input_nanousd=5, cached_input_nanousd=2, output_nanousd=7, waived_nanousd=4)
    assert charge.amount_nanousd == 10


@pytest.mark.parametrize("name", ["reasoning", "draft", "embedding", "image"])
def test_a_class_has_no_more_tokens_than_it_is_part_of(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} tokens"):
        TokenUsage(5, 0, 5, **{f"{name}_tokens": -1})
    if name != "draft":
        with pytest.raises(ValueError, match=f"{name} tokens"):
            TokenUsage(5, 0, 5, **{f"{name}_tokens": 6})


def test_counts_are_cut_and_what_nobody_counted_stays_unknown() -> None:
    usage = TokenUsage(50, 20, 70, reasoning_tokens=60)
    assert usage.at_most(30) == TokenUsage(30, 20, 30, reasoning_tokens=30)
