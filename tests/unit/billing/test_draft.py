"""What an invoice adds up to, whoever buys and however it is corrected."""

import datetime
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import Conflict, InvalidRequest
from headrace.base.money import nanousd_per_cent
from headrace.billing import figures
from headrace.billing.draft import credited, finalized, lines_of
from headrace.spec.invoices import BillingProfile, Invoice, InvoiceState, RatedUse, TokenClass
from headrace.spec.prices import Price, PriceBook, UnitPrices
from headrace.spec.settlements import Charge

Draw = Callable[..., Invoice]
Use = Callable[..., RatedUse]
Profile = Callable[..., BillingProfile]
cent = nanousd_per_cent
issue_day = datetime.date(2026, 12, 1)


def test_each_class_of_tokens_is_a_line_at_its_price(drawn: Draw, a_use: Use) -> None:
    invoice = drawn(
        a_use(
            prompt_tokens=1_500_000,
            input_nanousd=100_000_000,
            cached_tokens=500_000,
            cached_input_nanousd=10_000_000,
            completion_tokens=2_000_000,
            output_nanousd=800_000_000,
            waived_nanousd=7,
        )
    )
    assert [
        (line.token_class, line.tokens, line.price_nanousd_per_million, line.amount_nanousd)
        for line in invoice.lines
    ] == [
        (TokenClass.INPUT, 1_000_000, 100_000_000, 100_000_000),
        (TokenClass.CACHED_INPUT, 500_000, 20_000_000, 10_000_000),
        (TokenClass.OUTPUT, 2_000_000, 400_000_000, 800_000_000),
        (TokenClass.WAIVED, 0, None, -7),
    ]
    assert invoice.subtotal_nanousd == 909_999_993
    assert invoice.total_nanousd == 91 * cent


def test_the_buyers_country_chooses_the_tax(drawn: Draw, a_use: Use, a_profile: Profile) -> None:
    uses = a_use(completion_tokens=1, output_nanousd=10_000 * cent)
    german, french, other = (
        drawn(uses, buyer=a_profile(country)) for country in ("DE", "FR", "US")
    )
    assert german.taxes[0].amount_nanousd == 1_900 * cent
    assert german.total_nanousd == 11_900 * cent
    assert (french.taxes[0].amount_nanousd, french.taxes[0].note) == (0, "You owe the tax.")
    assert other.taxes == ()
    assert drawn(uses, buyer=a_profile("DE", exempt=True)).taxes == ()


def test_what_has_no_price_is_counted_and_not_billed(drawn: Draw, a_use: Use) -> None:
    invoice = drawn(a_use(book_id=None, requests=3, completion_tokens=100))
    assert (invoice.lines, invoice.total_nanousd, invoice.unrated_requests) == ((), 0, 3)


@pytest.mark.parametrize(
    ("opening", "credits_nanousd", "paid"),
    [
        (0, 0, 0),
        (3 * cent, 0, 3 * cent),
        (3 * cent + 5, 0, 3 * cent),  # only whole cents are taken
        (-9 * cent, 4 * cent, 0),  # the credit paid what was owed before
        (-9 * cent, 12 * cent, 3 * cent),
        (99_000 * cent, 0, 10_000 * cent),
    ],
)
def test_prepaid_credit_covers_the_net_amount(
    drawn: Draw, a_use: Use, opening: int, credits_nanousd: int, paid: int
) -> None:
    invoice = drawn(
        a_use(completion_tokens=1, output_nanousd=10_000 * cent),
        opening=opening,
        credits_nanousd=credits_nanousd,
    )
    assert invoice.paid_from_credit_nanousd == paid
    assert invoice.due_nanousd == 10_000 * cent - paid


amounts = st.integers(min_value=0, max_value=10**15)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(amounts, amounts, amounts, st.integers(0, 10**6)), max_size=8))
def test_lines_rounding_and_tax_make_the_total(
    drawn: Draw, a_use: Use, a_profile: Profile, sums: list[tuple[int, int, int, int]]
) -> None:
    uses = [
        a_use(
            f"model-{index}",
            input_nanousd=fresh,
            cached_input_nanousd=cached,
            output_nanousd=output,
            waived_nanousd=min(waived, fresh),
        )
        for index, (fresh, cached, output, waived) in enumerate(sums)
    ]
    invoice = drawn(*uses, buyer=a_profile("DE"))
    assert drawn(*reversed(uses), buyer=a_profile("DE")) == invoice
    assert invoice.subtotal_nanousd == sum(line.amount_nanousd for line in invoice.lines)
    assert abs(invoice.rounding_nanousd) <= cent // 2
    net = invoice.subtotal_nanousd + invoice.rounding_nanousd
    tax = sum(tax.amount_nanousd for tax in invoice.taxes)
    assert net % cent == tax % cent == 0
    assert abs(tax * 100 - net * 19) <= cent * 50
    assert invoice.total_nanousd == net + tax


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=12))
def test_credit_notes_in_parts_take_back_exactly_the_invoice(
    drawn: Draw, a_use: Use, a_profile: Profile, parts: list[int]
) -> None:
    bill = a_use(completion_tokens=1, output_nanousd=sum(parts) * cent)
    invoice = finalized(drawn(bill, buyer=a_profile("DE")), "INV-1", issue_day, 14)
    before = total = 0
    for part in parts:
        net, tax = credited(invoice, part * cent, before)
        before += net
        total += net + tax
    assert total == invoice.total_nanousd
    with pytest.raises(InvalidRequest):
        credited(invoice, cent, before)


def test_a_final_invoice_stays(drawn: Draw, a_use: Use) -> None:
    draft = drawn(a_use(output_nanousd=cent))
    with pytest.raises(Conflict):
        credited(draft, cent, 0)
    final = finalized(draft, "INV-000001", issue_day, 14)
    assert (final.state, final.number, final.issue_day, final.due_day) == (
        InvoiceState.FINALIZED,
        "INV-000001",
        "2026-12-01",
        "2026-12-15",
    )
    with pytest.raises(Conflict, match="credit note"):
        finalized(final, "INV-000002", issue_day, 14)


def test_each_unit_is_a_line_with_its_number_and_price(a_use: Use) -> None:
    prices = UnitPrices(per_image_nanousd=4 * cent, per_second_nanousd=100_000)
    price = Price(
        input_nanousd_per_million=0,
        cached_input_nanousd_per_million=0,
        output_nanousd_per_million=0,
        units=prices,
    )
    book = PriceBook(
        id="prb_1", name="b", create_time=0.0, effective_time=0.0, prices={"small": price}
    )
    charge = Charge(per_image_nanousd=12 * cent, per_second_nanousd=150_000, waived_nanousd=1)
    used = msgspec.structs.replace(
        a_use(), model="small", price_book_id="prb_1", charge=charge, units=(4, 3, 1_500, 0)
    )
    lines = lines_of(used, {book.id: book})
    assert [(line.token_class, figures.quantity(line), figures.price(line)) for line in lines] == [
        (TokenClass.IMAGES, "3", "$0.04 each"),
        (TokenClass.AUDIO, "1.5", "$0.0001 each"),
        (TokenClass.WAIVED, "", ""),
    ]
    assert sum(line.amount_nanousd for line in lines) == 12 * cent + 149_999
