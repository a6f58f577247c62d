"""The console's pages of money: prices, terms, invoices, payments."""

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.spec.invoices import Invoice
from headrace.spec.models import Model
from headrace.spec.payments import Payment, PaymentPurpose, PaymentState
from headrace.spec.prices import PriceBook
from headrace.storage import Database

if TYPE_CHECKING:
    from tests.e2e.console.conftest import OpenConsole

pytestmark = pytest.mark.e2e


def test_terms_taxes_currencies_and_how_somebody_pays_are_agreed_on(
    open_console: "OpenConsole", console_url: str
) -> None:
    console = open_console(console_url)
    page = console.page
    console.enter()
    console.ask("POST", "/tenants", {"name": "acme"})
    console.show("terms")
    console.fill("name-seller", {"name": "Mill GmbH", "country": "de"})
    console.fill("add-tax", {"name": "VAT 19%", "percent": "19", "countries": "DE, at"})
    console.fill("set-rates", {"rates": "EUR = 0.92"})
    console.fill("change-seller", {"name": "Mill Race GmbH"})  # and keeps what it does not ask for
    for text in ("Mill Race GmbH", "DE, AT", "EUR", "0.92"):
        expect(page.get_by_text(text, exact=True).first).to_be_visible()
    agreed = {
        "discount": "3",
        "minimum": "500",
        "volume": "1000 = 5",
        "free": "small = 1,000,000",
    }
    page.get_by_role("button", name="Terms of acme", exact=True).click()
    page.fill("dialog #field-free", "no number")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog .problem")).to_contain_text("write it as NAME = NUMBER")
    page.keyboard.press("Escape")
    for times in range(2):  # the second time over what was agreed, which the form shows
        page.get_by_role("button", name="Terms of acme", exact=True).click()
        for name, value in agreed.items():
            if times == 0:
                page.fill(f"dialog #field-{name}", value)
        page.locator("dialog button[type=submit]").click()
        expect(page.locator("dialog")).to_have_count(0)
        for text in (
            "3% off everything",
            "5% off what is over $1,000.00",
            "1,000,000 tokens of small free",
            "$500.00",
        ):
            expect(page.get_by_text(text, exact=True)).to_be_visible()
    page.get_by_role("button", name="Billing address of acme").click()
    for name, value in {"name": "Acme Ltd", "currency": "eur", "country": "ie"}.items():
        page.fill(f"dialog #field-{name}", value)
    page.locator("dialog button[type=submit]").click()
    expect(page.get_by_text("Acme Ltd")).to_be_visible()

    console.show("payments")
    expect(page.get_by_text("Stripe is on")).to_be_visible()
    page.get_by_role("button", name="How acme pays").click()
    for name, value in {"customer": "cus_1", "below": "5", "amount": "20"}.items():
        page.fill(f"dialog #field-{name}", value)
    page.locator("dialog button[type=submit]").click()
    expect(page.get_by_text("$20.00 when under $5.00, at most 3 a day")).to_be_visible()
    console.leave()


def test_an_invoice_is_credited_and_paid_in_parts_and_each_is_in_the_statement(
    open_console: "OpenConsole", console_url: str, database: Database, invoice: Invoice
) -> None:
    console = open_console(console_url)
    page = console.page
    console.enter()
    console.show("payments")
    console.fill(f"agree-{invoice.tenant_id}", {"customer": "cus_1"})
    console.show("invoices")
    expect(page.locator("td .badge")).to_have_text("overdue")
    page.get_by_role("link", name="INV-000001").click()
    page.get_by_role("heading", name="Invoice INV-000001").wait_for()
    for text in ("images", "1,000", "$0.04 each", "output tokens", "$0.40 a million"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    console.fill("credit-note", {"amount": "10", "reason": "an outage"})
    expect(page.get_by_text("$0.00 paid, $107.10 open")).to_be_visible()
    console.fill("record-transfer", {"reference": "DE-1", "amount": "7.10"})
    expect(page.get_by_text("$7.10 paid, $100.00 open")).to_be_visible()
    console.fill("record-transfer", {"reference": "DE-1", "amount": "9"}, submit=False)
    expect(page.locator("dialog .problem")).to_contain_text("DE-1/2")
    page.keyboard.press("Escape")
    console.fill("take-payment", {})
    expect(page.locator("td .badge", has_text="pending")).to_be_visible()
    console.fill("record-transfer", {"reference": "DE-2", "amount": "120"})
    expect(page.get_by_text("$20.00 too much, which became credit")).to_be_visible()
    console.check_axe("invoice")
    page.locator("tr", has_text="DE-2").get_by_role("link").click()
    page.get_by_role("heading", name="Statement of acme").wait_for()
    expect(page.locator("td", has_text="overpayment of INV-000001")).to_be_visible()
    console.check_axe("statement")
    page.go_back()
    page.get_by_role("button", name="Reverse the transfer DE-2").click()
    page.locator("dialog #field-reason").fill("another's money")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("td .badge", has_text="reversed")).to_be_visible()
    assert database.ledger.balances()[invoice.tenant_id] == 10 * 10**9 + 5_966_386_555
    console.leave()


def test_a_payment_that_is_unknown_is_resolved_by_a_person(
    open_console: "OpenConsole", console_url: str, database: Database, invoice: Invoice
) -> None:
    unknown = database.store.create(
        Payment(
            id=new_id("pay", SystemClock()),
            name="unknown",
            parent_id=invoice.tenant_id,
            create_time=0.0,
            purpose=PaymentPurpose.INVOICE,
            provider="stripe",
            currency="USD",
            amount_units=119_00,
            credit_nanousd=0,
            invoice_id=invoice.id,
            state=PaymentState.UNKNOWN,
            message="ask stripe",
        )
    )
    console = open_console(console_url)
    page = console.page
    console.enter()
    console.show("payments")
    console.check_axe("payments")
    page.locator(f"#resolve-{unknown.id}").click()
    console.check_axe("the dialog")
    page.keyboard.press("Escape")
    console.fill(f"resolve-{unknown.id}", {"end": "succeeded", "reason": "their support"})
    expect(page.locator("td .badge", has_text="succeeded")).to_be_visible()
    assert database.ledger.balances()[invoice.tenant_id] == 100 * 10**9  # the tax is no credit
    console.leave()


def test_prices_by_unit_and_for_longer_prompts_are_added_and_shown(
    open_console: "OpenConsole", console_url: str, database: Database
) -> None:
    made = Model(id=new_id("mod", SystemClock()), name="studio", create_time=0.0, targets=())
    database.store.create(made)
    console = open_console(console_url)
    page = console.page
    console.enter()
    console.show("prices")
    page.click("#add-prices")
    page.locator("dialog #field-model").select_option("studio")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog .problem")).to_contain_text("by another unit")
    page.fill("dialog #field-input", "0.10")
    page.fill("dialog #field-output", "0.40")
    page.fill("dialog #field-tiers", "32000 0.20")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog .problem")).to_contain_text("TOKENS = INPUT, OUTPUT")
    console.check_axe("the dialog")
    page.keyboard.press("Escape")
    console.fill("add-prices", {"model": "studio", "image": "0.04", "request": "0.002"})
    for text in ("$0.04 an image", "$0.002 a request"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    tiers = "32000 = 0.20, 0.60\n128000 = 0.40, 0.80, 0.03"
    by_token_too = {"model": "studio", "input": "0.10", "output": "0.40", "tiers": tiers}
    console.fill("add-prices", by_token_too)
    for text in ("prompts over 32,000 tokens", "prompts over 128,000 tokens", "$0.80", "$0.03"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    by_image, by_token = (
        price for book in database.store.list(PriceBook) for price in book.prices.values()
    )
    assert by_image.units is not None
    assert by_image.units.per_image_nanousd == 40_000_000
    assert [tier.over_prompt_tokens for tier in by_token.context_tiers] == [32_000, 128_000]
    console.leave()
