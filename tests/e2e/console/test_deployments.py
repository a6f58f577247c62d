"""The console's page of a deployment."""

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from headrace.spec.models import Model
from headrace.storage import Database

if TYPE_CHECKING:
    from tests.e2e.console.conftest import OpenConsole

pytestmark = pytest.mark.e2e


def test_adapters_of_a_deployment_are_named_and_changed(
    open_console: "OpenConsole", console_url: str, database: Database
) -> None:
    console = open_console(console_url)
    page = console.page
    console.enter()
    (model,) = database.store.list(Model)
    console.show("deployments")
    console.fill("deploy", {"loras": "support = /srv/adapters/support"})
    expect(page.get_by_text("1 adapter", exact=True)).to_be_visible()
    page.locator("tbody tr", has_text="1 adapter").locator("a").first.click()
    expect(page.get_by_text(f"{model.name}:support")).to_be_visible()
    console.fill("change-adapters", {"loras": "legal = /srv/adapters/legal=v2"})
    expect(page.get_by_text("/srv/adapters/legal=v2")).to_be_visible()
    console.leave()
