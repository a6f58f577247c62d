"""Who gets into the console, what a first load is, and that names in it are text."""

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from headrace.spec.deployments import Replica
from headrace.spec.models import Model
from headrace.storage import Database

if TYPE_CHECKING:
    from tests.e2e.console.conftest import OpenConsole

pytestmark = pytest.mark.e2e

first_load_bytes_max = 300_000


def test_nobody_gets_in_with_a_wrong_token_and_a_signed_out_session_is_over(
    open_console: "OpenConsole", console_url: str
) -> None:
    console = open_console(console_url)
    page = console.page
    page.goto(console_url)
    for secret, expected in (
        ("wrong-token-wrong-token", "#sign-in-problem"),
        (console.token, ".page h1"),
    ):
        page.fill("#token", secret)
        page.click("#sign-in button[type=submit]")
        expect(page.locator(expected)).not_to_be_empty()
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.click("#sign-out")
    page.locator("#sign-in").wait_for()
    page.reload()
    page.locator("#sign-in").wait_for()
    console.leave()


def test_the_first_load_is_small_and_a_token_leaves_the_address(
    open_console: "OpenConsole", console_url: str
) -> None:
    console = open_console(console_url)
    page = console.page
    sizes: list[int] = []
    page.on(
        "requestfinished",
        lambda request: sizes.append(
            request.sizes()["responseBodySize"] + request.sizes()["responseHeadersSize"]
        ),
    )
    console.enter()
    assert 0 < sum(sizes) < first_load_bytes_max
    assert console.token not in page.url
    console.leave()


def test_names_are_text_and_engine_keys_are_nowhere(
    open_console: "OpenConsole", console_url: str, database: Database
) -> None:
    (model,) = database.store.list(Model)
    assert "<script>" in model.name
    canary = database.store.list(Replica)[0].engine_key
    assert canary
    console = open_console(console_url)
    page = console.page
    console.enter()
    for name in ("overview", "deployments", "replicas", "models"):
        page.evaluate("name => { location.hash = `#/${name}`; }", name)
        page.locator(f'nav a[href="#/{name}"][aria-current]').wait_for()
        page.locator("table").first.wait_for()
        assert canary not in page.content()
    expect(page.get_by_text(model.name).first).to_be_visible()
    page.evaluate("location.hash = '#/replicas'")
    expect(page.get_by_text("the process ended with status 1")).to_be_visible()
    assert re.search(
        r"default-src 'none'", page.request.get(console_url).headers["content-security-policy"]
    )
    console.leave()
