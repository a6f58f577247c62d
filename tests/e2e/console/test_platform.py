"""The console of whole platforms: an operator's way from an empty one to an invoice, an account's
own view, and every page looked at by axe-core, in both themes and at a phone's width."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from openai import APIStatusError, OpenAI
from playwright.sync_api import expect

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess

if TYPE_CHECKING:
    from tests.e2e.console.conftest import OpenConsole

pytestmark = pytest.mark.e2e

demo_model = "smollm2-135m-instruct"
pages = (
    "overview", "playground", "keys", "limits", "start", "deployments", "replicas", "nodes",
    "models", "explain", "usage", "requests", "invoices", "payments", "wallets", "prices", "terms",
    "costs", "tenants", "members", "service-accounts", "webhooks", "audit", "settings",
)  # fmt: skip


def has_answered(client: OpenAI) -> bool:
    """Ask the demo model; False while the gateway has not heard of the key or of the credit."""
    try:
        client.chat.completions.create(
            model=demo_model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
        )
    except APIStatusError as refused:
        if refused.status_code in {401, 402}:
            return False
        raise
    return True


@pytest.fixture
def empty_platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    """An empty platform: what there will be is made in the console."""
    with PlatformProcess.start(tmp_path / "empty") as started:
        yield started


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """A platform in use: a tenant asked its model once, and pays for it."""
    with PlatformProcess.start(tmp_path_factory.mktemp("used"), "--demo") as started:
        started.wait_active(1)
        price = {"input_usd_per_million": "1", "output_usd_per_million": "2"}
        started.admin("POST", "/prices", prices={demo_model: price})
        started.admin("PUT", "/seller", name="Mill GmbH")
        started.admin("POST", "/tenants", name="acme", credit_usd="10")
        started.admin("POST", "/projects", tenant="acme", name="web")
        key = started.admin("POST", "/keys", project="acme/web", name="ci")["key"]
        with OpenAI(base_url=f"{started.gateway_url}/v1", api_key=key, timeout=60) as client:
            wait_until(lambda: has_answered(client))
        yield started


def test_from_an_empty_platform_to_an_invoice(
    open_console: "OpenConsole", empty_platform: PlatformProcess
) -> None:
    console = open_console(empty_platform.admin_url)
    page = console.page
    page.goto(empty_platform.admin_url)
    page.fill("#token", empty_platform.admin_token)
    page.click("#sign-in button[type=submit]")
    page.get_by_role("heading", name="Overview").wait_for()

    console.show("deployments")
    console.fill("deploy", {"model": "", "name": "demo", "source": demo_model})
    console.show("prices")
    console.fill("add-prices", {"model": "demo", "input": "1", "output": "2"})
    console.show("tenants")
    console.fill("create-tenant", {"name": "acme", "credit": "10"})
    console.fill("create-project", {"name": "web"})
    console.show("keys")
    console.fill("create-key", {"name": "ci", "rpm": "60"}, submit=False)
    expect(page.locator("#secret")).to_contain_text("hr_")
    page.click("#done")
    expect(page.get_by_text("60 requests/min")).to_be_visible()

    console.show("deployments")
    expect(page.locator("td .badge").first).to_have_text("ready")
    console.show("playground")  # the key that was made is there already
    page.locator("#model-A option", has_text="demo").wait_for(state="attached")
    page.fill("#max-tokens", "8")
    page.fill("#prompt", "Say hello.")
    page.click("#send")
    expect(page.locator(".message.assistant").first).not_to_be_empty()
    expect(page.locator(".note").first).to_contain_text("8 out")
    page.get_by_role("link", name="why there").click()
    expect(page.get_by_text("chosen", exact=True)).to_be_visible()
    console.show("overview")  # which says so for a minute after an answer
    expect(page.locator(".status-line .badge")).to_have_text("Serving")

    console.show("usage")
    expect(page.locator("td", has_text="acme").first).to_be_visible()
    page.locator("tbody .number a").first.click()  # a number leads to its rows
    expect(page.locator("td .badge", has_text="finished")).to_be_visible()

    console.show("invoices")
    console.fill("name-seller", {"name": "Mill GmbH"})
    console.fill("draw-invoices", {})
    expect(page.locator("td", has_text="acme")).to_be_visible()
    with page.expect_download() as download:
        page.locator("[id^=html-]").click()
    assert "acme" in Path(download.value.path()).read_text()

    console.show("keys")
    page.locator("[id^=revoke-]").click()
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("td .badge", has_text="revoked")).to_be_visible()
    console.leave()


def test_an_account_signs_in_with_its_password_and_sees_what_is_its_own(
    open_console: "OpenConsole", platform: PlatformProcess
) -> None:
    console = open_console(platform.admin_url, platform.admin_token)
    page = console.page
    console.enter()
    console.show("members")
    console.fill("create-user", {"login": "mara"}, submit=False)
    secret = page.locator("#secret")
    secret.wait_for()
    password = secret.inner_text()
    page.click("#done")
    console.show("tenants")
    console.fill("create-tenant", {"name": "other"})
    console.show("members")
    console.fill("add-member", {"tenant": "other", "user": "mara", "role": "developer"})
    console.fill("add-member", {"tenant": "acme", "user": "mara", "role": "viewer"})
    page.click("#sign-out")
    page.fill("#login", "mara")
    page.fill("#token", password)
    page.click("#sign-in button[type=submit]")
    expect(page.locator("#who")).to_have_text("mara")
    assert page.locator('nav a[href="#/deployments"]').count() == 0
    console.show("tenants")
    expect(page.locator("td", has_text="other").first).to_be_visible()
    console.show("usage")  # of one tenant at a time
    page.select_option("#choose-view", label="other")
    expect(page.get_by_text("No requests in this time.").first).to_be_visible()
    page.select_option("#choose-view", label="acme")
    expect(page.locator("td", has_text="acme").first).to_be_visible()
    console.show("requests")
    expect(page.locator("td .badge", has_text="finished").first).to_be_visible()
    for name in ("invoices", "payments", "terms"):
        assert page.locator(f'nav a[href="#/{name}"]').count() == 0, "a developer sees no money"
    console.leave()


def test_a_pointer_that_rests_on_a_chart_holds_no_page(
    open_console: "OpenConsole", platform: PlatformProcess
) -> None:
    console = open_console(platform.admin_url, platform.admin_token)
    page = console.page
    page.clock.install()
    console.enter()
    page.locator(".chart-hold").first.hover()
    page.evaluate("document.querySelector('.page').id = 'drawn-before'")
    page.clock.fast_forward(11_000)
    expect(page.locator("#drawn-before")).to_have_count(0)
    console.leave()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious_on_any_page(
    open_console: "OpenConsole", platform: PlatformProcess, scheme: str, width: int
) -> None:
    console = open_console(platform.admin_url, width=width, scheme=scheme)
    page = console.page
    page.goto(platform.admin_url)
    page.locator("#sign-in").wait_for()
    console.check_axe("sign-in")
    page.fill("#token", platform.admin_token)
    page.click("#sign-in button[type=submit]")
    page.get_by_role("heading", name="Overview").wait_for()
    for name in pages:
        console.show(name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        console.check_axe(name)
    console.show("deployments")
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="Rollout").wait_for()
    console.check_axe("deployment")
    console.leave()
