"""The console without a mouse."""

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.spec.deployments import Deployment
from headrace.spec.invoices import Invoice
from headrace.spec.models import Model
from headrace.storage import Database

if TYPE_CHECKING:
    from tests.e2e.console.conftest import ConsolePage, OpenConsole

pytestmark = pytest.mark.e2e


def test_a_tenant_is_made_and_limited_without_a_mouse(
    open_console: "OpenConsole", console_url: str
) -> None:
    console = open_console(console_url)
    page = console.page
    page.goto(console_url)
    page.locator("#sign-in").wait_for()
    console.tab_to("#token")
    page.keyboard.type(console.token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    console.tab_to(".skip")
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    console.tab_to('a[href="#/tenants"]')
    page.keyboard.press("Enter")
    expect(page.get_by_text("No tenants yet.")).to_be_visible()
    console.tab_to("#create-tenant")
    page.keyboard.press("Enter")
    console.tab_to("#field-name")
    page.keyboard.type("acme")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator("#create-tenant")).to_be_focused()  # where one was before
    console.tab_to("[id^=limits-]")
    page.keyboard.press("Enter")
    console.tab_to("#field-rpm")
    page.keyboard.press("Escape")  # closes without a change
    expect(page.locator("[id^=limits-]")).to_be_focused()
    page.keyboard.press("Enter")
    console.tab_to("#field-rpm")
    page.keyboard.type("90")
    page.keyboard.press("Enter")
    expect(page.get_by_text("90 requests/min")).to_be_visible()
    console.leave()


def focused(page: Page) -> str:
    """What has the focus: its id, or its text."""
    return str(
        page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
    )


def walk(page: Page) -> None:
    """Tab through the open dialog: it is named, its fields are, and they come in their order."""
    named = page.evaluate(
        "document.getElementById(document.querySelector('dialog').getAttribute('aria-labelledby'))"
        ".textContent"
    )
    assert named
    stops: list[str] = page.locator("dialog :is(input, select, textarea, button)").evaluate_all(
        "nodes => nodes.map((node) => node.id || node.textContent.trim())"
    )
    for stop in stops:
        for _ in range(8):  # a date has several stops
            if focused(page) == stop:
                break
            page.keyboard.press("Tab")
        assert focused(page) == stop, (named, stop)
    labels: list[str] = page.locator("dialog :is(input, select, textarea)").evaluate_all(
        "nodes => nodes.map((node) => node.labels[0]?.textContent.trim() ?? '')"
    )
    assert all(labels), named


def send_by_keyboard(console: "ConsolePage", opener: str, values: dict[str, str]) -> None:
    """Open a dialog by its button, leave it by Escape, open it again, fill it and send it."""
    page = console.page
    console.tab_to(f"#{opener}")
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    walk(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator(f"#{opener}")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    for name, value in values.items():
        console.tab_to(f"#field-{name}")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(value)
    console.tab_to("dialog button[type=submit]")
    page.keyboard.press("Enter")


def test_every_kind_of_dialog_is_filled_and_sent_by_keyboard(
    open_console: "OpenConsole", console_url: str, database: Database, invoice: Invoice
) -> None:
    deployment = database.store.list(Deployment)[0]
    clock = SystemClock()
    database.store.create(Model(id=new_id("mod", clock), name="studio", create_time=0.0))
    console = open_console(console_url)
    page = console.page
    console.enter()
    console.ask("PUT", "/seller", {"name": "Mill GmbH"})
    console.ask("POST", "/projects", {"tenant": invoice.tenant_id, "name": "web"})
    of_tenant, secret = invoice.tenant_id, ""  # nothing to be seen but a secret
    one_invoice, one_deployment = f"invoice?id={invoice.id}", f"deployment?id={deployment.id}"
    for place, opener, values, seen in (
        ("prices", "add-prices", {"model": "studio", "input": "0.1", "output": "0.4"}, "$0.40"),
        ("payments", f"agree-{of_tenant}", {"customer": "cus_1", "most": "2"}, "cus_1"),
        ("terms", f"terms-{of_tenant}", {"volume": "1000 = 5"}, "5% off what is over $1,000.00"),
        ("terms", f"profile-{of_tenant}", {"name": "Acme Ltd", "country": "ie"}, "Acme Ltd"),
        ("terms", "change-seller", {"name": "Mill Race GmbH"}, "Mill Race GmbH"),
        ("terms", "add-tax", {"name": "VAT", "percent": "19", "countries": "at"}, "AT"),
        ("terms", "set-rates", {"rates": "EUR = 0.92"}, "0.92"),
        (one_invoice, "credit-note", {"amount": "10", "reason": "late"},
         "$0.00 paid, $107.10 open"),
        (one_invoice, "record-transfer", {"reference": "DE-1", "amount": "7.10"},
         "$7.10 paid, $100.00 open"),
        (one_deployment, "change-adapters", {"loras": "legal = /srv/legal"}, "/srv/legal"),
        ("tenants", "create-project", {"name": "laboratory"}, "laboratory"),
        ("webhooks", "create-webhook", {"url": "https://93.184.215.14/told"}, secret),
        ("members", "create-user", {"login": "mara"}, secret),
        ("service-accounts", "create-service-account", {"name": "deployer"}, secret),
        ("keys", "create-key", {"name": "ci"}, secret),
    ):  # fmt: skip
        page.evaluate("place => { location.hash = `#/${place}`; }", place)
        page.locator(f"#{opener}").wait_for()
        send_by_keyboard(console, opener, values)
        if seen == secret:
            expect(page.locator("dialog #secret")).not_to_be_empty()
            expect(page.locator("dialog")).to_have_count(1)
            console.tab_to("#done")
            page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_have_count(0)
        expect(page.locator(f"#{opener}")).to_be_focused()
        if seen != secret:
            expect(page.get_by_text(seen, exact=True).first).to_be_visible()
    console.leave()
