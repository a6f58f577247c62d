"""What a customer sees: the console by its role, and the paper of an invoice."""

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from headrace.billing.page import invoice_page
from headrace.spec.invoices import Invoice

if TYPE_CHECKING:
    from tests.e2e.console.conftest import OpenConsole

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("role", ["owner", "billing", "viewer"])
def test_axe_finds_nothing_serious_on_what_a_customer_sees(
    open_console: "OpenConsole", console_url: str, invoice: Invoice, role: str
) -> None:
    console = open_console(console_url)
    page = console.page
    console.enter()
    made = console.ask("POST", "/users", {"login": "mara"})
    member = {"tenant": invoice.tenant_id, "user": "mara", "role": role}
    console.ask("PUT", "/members", member)
    page.click("#sign-out")
    page.fill("#login", "mara")
    page.fill("#token", made["initial_password"])
    page.click("#sign-in button[type=submit]")
    expect(page.locator("#who")).to_have_text("mara")
    links = page.locator("nav a[href^='#/']").evaluate_all(
        "links => links.map((link) => link.getAttribute('href').slice(2))"
    )
    assert ("invoices" in links) == (role != "viewer")
    assert "deployments" not in links
    for name in links:
        console.show(name)
        console.check_axe(name)
    console.leave()


def test_the_paper_of_an_invoice_fits_a_phone(
    open_console: "OpenConsole", invoice: Invoice
) -> None:
    console = open_console("about:", width=390)
    page = console.page
    page.set_content(invoice_page(invoice).decode())
    for text in ("painter", "150,000,000", "$0.40 a million", "$60.00"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    console.check_axe("the paper")
    assert console.urls == []
    console.leave()
