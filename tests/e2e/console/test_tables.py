"""The console's tables: long ones, old rows, and what somebody else changes."""

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.spec.tenancy import Tenant
from headrace.storage import Database

if TYPE_CHECKING:
    from tests.e2e.console.conftest import OpenConsole

pytestmark = pytest.mark.e2e

many_tenants = 60  # more than a table shows at first


def test_what_somebody_else_changes_is_on_the_screen_without_being_asked_for(
    open_console: "OpenConsole", console_url: str
) -> None:
    console = open_console(console_url)
    page = console.page
    console.enter()
    console.show("tenants")
    expect(page.get_by_text("No tenants yet.")).to_be_visible()
    console.ask("POST", "/tenants", {"name": "from-elsewhere"})
    expect(page.get_by_text("from-elsewhere")).to_be_visible()
    console.leave()


def test_a_long_table_shows_its_first_rows_and_finds_the_others(
    open_console: "OpenConsole", database: Database, console_url: str
) -> None:
    for number in range(many_tenants):
        name = f"tenant-{number}-of-a-rather-long-name"
        tenant_id = new_id(Tenant.id_prefix, SystemClock())
        database.store.create(Tenant(id=tenant_id, name=name, create_time=0.0))
    console = open_console(console_url, width=390)
    page = console.page
    console.enter()
    console.show("tenants")
    rows = page.locator("table").first.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(many_tenants)
    page.locator("#find-tenants-and-balances").fill("TENANT-57-")
    expect(rows).to_have_count(1)
    console.ask("POST", "/tenants", {"name": "from-elsewhere-tenant-57-"})
    expect(rows).to_have_count(2)  # drawn anew, and still looked for
    page.keyboard.type("of")  # where the cursor was
    expect(rows).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    console.leave()


def test_the_audit_log_goes_back_to_its_first_record(
    open_console: "OpenConsole", console_url: str
) -> None:
    console = open_console(console_url)
    page = console.page
    console.enter()
    for number in range(105):
        console.ask("POST", "/tenants", {"name": f"tenant-{number}"})
    console.show("audit")
    expect(page.locator("#page-back")).to_have_count(0)
    page.click("#page-older")
    expect(page.locator("#page-back")).to_be_visible()
    expect(page.locator("td", has_text="open session").first).to_be_visible()
    console.check_axe("audit")
    page.click("#page-back")
    expect(page.locator("#page-older")).to_be_visible()
    console.leave()
