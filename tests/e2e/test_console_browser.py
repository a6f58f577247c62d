"""The console in a real Chromium: an operator's whole way from an empty platform to an invoice, and
every page looked at by axe-core, in both themes and at a phone's width."""

import datetime
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from msgspec.structs import replace
from openai import APIStatusError, OpenAI
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.billing.draft import finalized
from headrace.billing.page import invoice_page
from headrace.cli.admin_site import create_admin_site
from headrace.console import create_console_app
from headrace.control.admin import create_admin_app
from headrace.control.payments.provider import Answer, ChargeOrder, RefundOrder, Verdict
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.invoices import Invoice, InvoiceLine, InvoiceTax, Party, TokenClass
from headrace.spec.models import FileHeader, Model, ModelVersion, VersionFile, WeightedTarget
from headrace.spec.nodes import Inventory, Node, NodeDevice, NodeState
from headrace.spec.payments import Payment, PaymentPurpose, PaymentState
from headrace.spec.prices import PriceBook
from headrace.spec.tenancy import Tenant
from headrace.storage import Database, open_sqlite

chromium = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(chromium is None, reason="Chromium is missing: apt-get install chromium"),
]

axe_script = Path(__file__).parent / "vendor" / "axe-core-4.14.1" / "axe.min.js"
token = "an-admin-token-of-30-characters"
canary = "canary-engine-key-9f2c"
demo_model = "smollm2-135m-instruct"
hostile_name = "small<script>alert(1)</script>"
first_load_bytes_max = 300_000
many_tenants = 60  # more than a table shows at first
nothing = "\N{EN DASH}"  # how an empty cell is shown
patience_ms = 60_000  # of one step; nothing is judged by its time
arguments = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
pages = (
    "overview", "playground", "keys", "limits", "start", "deployments", "replicas", "nodes",
    "models", "explain", "usage", "requests", "invoices", "payments", "wallets", "prices", "terms",
    "costs", "tenants", "members", "service-accounts", "webhooks", "audit", "settings",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments)
        expect.set_options(timeout=patience_ms)
        yield launched
        launched.close()


class Watch:
    """What a page asked for and complained of."""

    def __init__(self, page: Page) -> None:
        self.urls: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._request)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)

    def _request(self, request: Request) -> None:
        self.urls.append(request.url)

    def _said(self, message: Any) -> None:
        expected = ("401", "403", "404", "409", "503")  # answers that pages deal with
        if message.type == "error" and not any(code in message.text for code in expected):
            self.errors.append(message.text)

    def check(self, url: str) -> None:
        """Nothing went wrong, and no request left for elsewhere."""
        assert self.errors == []
        elsewhere = [each for each in self.urls if not each.startswith((url, f"blob:{url}"))]
        assert elsewhere == []


def new_page(browser: Browser, width: int = 1280, scheme: str = "light") -> tuple[Page, Watch]:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.set_default_timeout(patience_ms)
    return page, Watch(page)


def show(page: Page, name: str) -> None:
    """Go to a page of the console and wait until it is drawn from an answer."""
    page.evaluate("name => { location.hash = `#/${name}`; }", name)
    title = page.locator(f'nav a[href="#/{name}"][aria-current]').inner_text()
    expect(page.locator(".page h1")).to_have_text(title)  # not one before
    expect(page.locator("#live")).to_have_text("Live")


def fill(page: Page, button: str, values: dict[str, str], submit: bool = True) -> None:
    """Open a dialog by its button and send it."""
    page.locator(f"#{button}").click()
    for name, value in values.items():
        field = page.locator(f"dialog #field-{name}")
        if field.evaluate("node => node.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.locator("dialog button[type=submit]").click()
    if submit:
        expect(page.locator("dialog")).to_have_count(0)


@pytest.fixture
def empty_platform(tmp_path: Path) -> Iterator[PlatformProcess]:
    """An empty platform: what there will be is made in the console."""
    with PlatformProcess.start(tmp_path / "empty") as started:
        yield started


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


@pytest.mark.timeout(240)
def test_from_an_empty_platform_to_an_invoice(
    browser: Browser, empty_platform: PlatformProcess
) -> None:
    page, watch = new_page(browser)
    page.goto(empty_platform.admin_url)
    page.fill("#token", empty_platform.admin_token)
    page.click("#sign-in button[type=submit]")
    page.get_by_role("heading", name="Overview").wait_for()

    show(page, "deployments")
    fill(page, "deploy", {"model": "", "name": "demo", "source": demo_model})
    show(page, "prices")
    fill(page, "add-prices", {"model": "demo", "input": "1", "output": "2"})
    show(page, "tenants")
    fill(page, "create-tenant", {"name": "acme", "credit": "10"})
    fill(page, "create-project", {"name": "web"})
    show(page, "keys")
    fill(page, "create-key", {"name": "ci", "rpm": "60"}, submit=False)
    expect(page.locator("#secret")).to_contain_text("hr_")
    page.click("#done")
    expect(page.get_by_text("60 requests/min")).to_be_visible()

    show(page, "deployments")
    expect(page.locator("td .badge").first).to_have_text("ready")
    show(page, "playground")  # the key that was made is there already
    page.locator("#model-A option", has_text="demo").wait_for(state="attached")
    page.fill("#max-tokens", "8")
    page.fill("#prompt", "Say hello.")
    page.click("#send")
    expect(page.locator(".message.assistant").first).not_to_be_empty(timeout=patience_ms)
    expect(page.locator(".note").first).to_contain_text("8 out")
    page.get_by_role("link", name="why there").click()
    expect(page.get_by_text("chosen", exact=True)).to_be_visible()
    show(page, "overview")  # which says so for a minute after an answer
    expect(page.locator(".status-line .badge")).to_have_text("Serving")

    show(page, "usage")
    expect(page.locator("td", has_text="acme").first).to_be_visible(timeout=patience_ms)
    page.locator("tbody .number a").first.click()  # a number leads to its rows
    expect(page.locator("td .badge", has_text="finished")).to_be_visible()

    show(page, "invoices")
    fill(page, "name-seller", {"name": "Mill GmbH"})
    fill(page, "draw-invoices", {})
    expect(page.locator("td", has_text="acme")).to_be_visible()
    with page.expect_download() as download:
        page.locator("[id^=html-]").click()
    assert "acme" in Path(download.value.path()).read_text()

    show(page, "keys")
    page.locator("[id^=revoke-]").click()
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("td .badge", has_text="revoked")).to_be_visible()
    watch.check(empty_platform.admin_url)


@pytest.mark.timeout(240)
def test_an_account_signs_in_with_its_password_and_sees_what_is_its_own(
    browser: Browser, platform: PlatformProcess
) -> None:
    page, watch = new_page(browser)
    page.goto(f"{platform.admin_url}/#token={platform.admin_token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "members")
    fill(page, "create-user", {"login": "mara"}, submit=False)
    secret = page.locator("#secret")
    secret.wait_for()
    password = secret.inner_text()
    page.click("#done")
    show(page, "tenants")
    fill(page, "create-tenant", {"name": "other"})
    show(page, "members")
    fill(page, "add-member", {"tenant": "other", "user": "mara", "role": "developer"})
    fill(page, "add-member", {"tenant": "acme", "user": "mara", "role": "viewer"})
    page.click("#sign-out")
    page.fill("#login", "mara")
    page.fill("#token", password)
    page.click("#sign-in button[type=submit]")
    expect(page.locator("#who")).to_have_text("mara")
    assert page.locator('nav a[href="#/deployments"]').count() == 0
    show(page, "tenants")
    expect(page.locator("td", has_text="other").first).to_be_visible()
    show(page, "usage")  # of one tenant at a time
    page.select_option("#choose-view", label="other")
    expect(page.get_by_text("No requests in this time.").first).to_be_visible()
    page.select_option("#choose-view", label="acme")
    expect(page.locator("td", has_text="acme").first).to_be_visible()
    show(page, "requests")
    expect(page.locator("td .badge", has_text="finished").first).to_be_visible()
    for name in ("invoices", "payments", "terms"):
        assert page.locator(f'nav a[href="#/{name}"]').count() == 0, "a developer sees no money"
    watch.check(platform.admin_url)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious_on_any_page(
    browser: Browser, platform: PlatformProcess, scheme: str, width: int
) -> None:
    page, watch = new_page(browser, width, scheme)
    page.goto(platform.admin_url)
    page.locator("#sign-in").wait_for()
    script = axe_script.read_text()
    check(page, script, "sign-in")
    page.fill("#token", platform.admin_token)
    page.click("#sign-in button[type=submit]")
    page.get_by_role("heading", name="Overview").wait_for()
    for name in pages:
        show(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        check(page, script, name)
    show(page, "deployments")
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="Rollout").wait_for()
    check(page, script, "deployment")
    watch.check(platform.admin_url)


def check(page: Page, script: str, name: str) -> None:
    """Run axe-core in the page, beside its content policy, which lets no script in."""
    if page.evaluate("typeof axe === 'undefined'"):
        page.evaluate(script)
    found = page.evaluate(
        "axe.run({ resultTypes: ['violations'], preload: false, iframes: false })"
        ".then(({ violations }) => violations"
        ".filter(({ impact }) => impact === 'serious' || impact === 'critical')"
        ".map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`))"
    )
    assert found == [], name


def fill_store(database: Database) -> None:
    """One model with a deployment of two replicas, of which one is ready."""
    clock = SystemClock()
    now_s = clock.wall_s()
    version = ModelVersion(
        id=new_id("ver", clock), name="v1", parent_id="", create_time=now_s, source="small.gguf"
    )
    model = Model(
        id=new_id("mod", clock),
        name=hostile_name,
        create_time=now_s,
        targets=(WeightedTarget(version.id),),
    )
    deployment = Deployment(
        id=new_id("dep", clock),
        name="a-deployment-with-a-rather-long-name",
        parent_id=model.id,
        create_time=now_s,
        model_version_id=version.id,
        replicas=2,
    )
    for resource in (model, version, deployment):
        database.store.create(resource)
    for name, state, detail in (
        ("first", ReplicaState.ACTIVE, ""),
        ("second", ReplicaState.FAILED, "the process ended with status 1"),
    ):
        database.store.create(
            Replica(
                id=new_id("rep", clock),
                name=name,
                parent_id=deployment.id,
                create_time=now_s,
                state=state,
                detail=detail,
                address="http://127.0.0.1:40001",
                engine_key=canary,
            )
        )


class Provider:
    """Is there, and takes its time."""

    name = "stripe"

    def charge(self, order: ChargeOrder) -> Answer:
        return Answer(Verdict.PROCESSING)

    def refund(self, order: RefundOrder) -> Answer:
        return Answer(Verdict.PROCESSING)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A store of awkward things."""
    opened = open_sqlite(tmp_path / "headrace.db")
    fill_store(opened)
    yield opened
    opened.close()


@pytest.fixture
def console_url(database: Database) -> Iterator[str]:
    """The console and the admin API alone."""
    admin = create_admin_app(database, token, pepper=b"p" * 32, payment_provider=Provider())
    listener = socket.create_server(("127.0.0.1", 0))
    site = create_admin_site(admin, create_console_app())
    config = uvicorn.Config(site, log_level="warning", lifespan="off", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_nobody_gets_in_with_a_wrong_token_and_a_signed_out_session_is_over(
    browser: Browser, console_url: str
) -> None:
    page, watch = new_page(browser)
    page.goto(console_url)
    for secret, expected in (("wrong-token-wrong-token", "#sign-in-problem"), (token, ".page h1")):
        page.fill("#token", secret)
        page.click("#sign-in button[type=submit]")
        expect(page.locator(expected)).not_to_be_empty()
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.click("#sign-out")
    page.locator("#sign-in").wait_for()
    page.reload()
    page.locator("#sign-in").wait_for()
    watch.check(console_url)
    page.context.close()


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until something has the focus, as somebody without a mouse would."""
    for _ in range(200):
        if page.evaluate("at => document.activeElement.matches(at)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"no way to {selector} by Tab")


def test_a_tenant_is_made_and_limited_without_a_mouse(browser: Browser, console_url: str) -> None:
    page, watch = new_page(browser)
    page.goto(console_url)
    page.locator("#sign-in").wait_for()
    tab_to(page, "#token")
    page.keyboard.type(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    tab_to(page, ".skip")
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    tab_to(page, 'a[href="#/tenants"]')
    page.keyboard.press("Enter")
    expect(page.get_by_text("No tenants yet.")).to_be_visible()
    tab_to(page, "#create-tenant")
    page.keyboard.press("Enter")
    tab_to(page, "#field-name")
    page.keyboard.type("acme")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator("#create-tenant")).to_be_focused()  # where one was before
    tab_to(page, "[id^=limits-]")
    page.keyboard.press("Enter")
    tab_to(page, "#field-rpm")
    page.keyboard.press("Escape")  # closes without a change
    expect(page.locator("[id^=limits-]")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "#field-rpm")
    page.keyboard.type("90")
    page.keyboard.press("Enter")
    expect(page.get_by_text("90 requests/min")).to_be_visible(timeout=patience_ms)
    watch.check(console_url)
    page.context.close()


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


def send_by_keyboard(page: Page, opener: str, values: dict[str, str]) -> None:
    """Open a dialog by its button, leave it by Escape, open it again, fill it and send it."""
    tab_to(page, f"#{opener}")
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    walk(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator(f"#{opener}")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    for name, value in values.items():
        tab_to(page, f"#field-{name}")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(value)
    tab_to(page, "dialog button[type=submit]")
    page.keyboard.press("Enter")


@pytest.mark.timeout(240)
def test_every_kind_of_dialog_is_filled_and_sent_by_keyboard(
    browser: Browser, console_url: str, database: Database
) -> None:
    invoice = bill(database)
    deployment = database.store.list(Deployment)[0]
    clock = SystemClock()
    database.store.create(Model(id=new_id("mod", clock), name="studio", create_time=0.0))
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    post(page, console_url, "/seller", {"name": "Mill GmbH"}, "PUT")
    post(page, console_url, "/projects", {"tenant": invoice.tenant_id, "name": "web"})
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
        send_by_keyboard(page, opener, values)
        if seen == secret:
            expect(page.locator("dialog #secret")).not_to_be_empty()
            expect(page.locator("dialog")).to_have_count(1)
            tab_to(page, "#done")
            page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_have_count(0)
        expect(page.locator(f"#{opener}")).to_be_focused()
        if seen != secret:
            expect(page.get_by_text(seen, exact=True).first).to_be_visible()
    watch.check(console_url)
    page.context.close()


def test_the_first_load_is_small_and_a_token_leaves_the_address(
    browser: Browser, console_url: str
) -> None:
    page, watch = new_page(browser)
    sizes: list[int] = []
    page.on(
        "requestfinished",
        lambda request: sizes.append(
            request.sizes()["responseBodySize"] + request.sizes()["responseHeadersSize"]
        ),
    )
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    assert 0 < sum(sizes) < first_load_bytes_max
    assert token not in page.url
    watch.check(console_url)
    page.context.close()


def test_what_somebody_else_changes_is_on_the_screen_without_being_asked_for(
    browser: Browser, console_url: str
) -> None:
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "tenants")
    expect(page.get_by_text("No tenants yet.")).to_be_visible()
    page.request.post(
        f"{console_url}/admin/v1/tenants",
        headers={"authorization": f"Bearer {token}"},
        data={"name": "from-elsewhere"},
    )
    expect(page.get_by_text("from-elsewhere")).to_be_visible(timeout=patience_ms)
    watch.check(console_url)
    page.context.close()


def post(page: Page, console_url: str, path: str, value: object, method: str = "POST") -> Any:
    headers = {"authorization": f"Bearer {token}"}
    answer = page.request.fetch(
        f"{console_url}/admin/v1{path}", method=method, headers=headers, data=value
    )
    assert answer.ok, answer.text()
    return answer.json()


def test_terms_taxes_currencies_and_how_somebody_pays_are_agreed_on(
    browser: Browser, console_url: str
) -> None:
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    post(page, console_url, "/tenants", {"name": "acme"})
    show(page, "terms")
    fill(page, "name-seller", {"name": "Mill GmbH", "country": "de"})
    fill(page, "add-tax", {"name": "VAT 19%", "percent": "19", "countries": "DE, at"})
    fill(page, "set-rates", {"rates": "EUR = 0.92"})
    fill(page, "change-seller", {"name": "Mill Race GmbH"})  # and keeps what it does not ask for
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

    show(page, "payments")
    expect(page.get_by_text("Stripe is on")).to_be_visible()
    page.get_by_role("button", name="How acme pays").click()
    for name, value in {"customer": "cus_1", "below": "5", "amount": "20"}.items():
        page.fill(f"dialog #field-{name}", value)
    page.locator("dialog button[type=submit]").click()
    expect(page.get_by_text("$20.00 when under $5.00, at most 3 a day")).to_be_visible()
    watch.check(console_url)
    page.context.close()


def test_a_long_table_shows_its_first_rows_and_finds_the_others(
    browser: Browser, database: Database, console_url: str
) -> None:
    for number in range(many_tenants):
        name = f"tenant-{number}-of-a-rather-long-name"
        tenant_id = new_id(Tenant.id_prefix, SystemClock())
        database.store.create(Tenant(id=tenant_id, name=name, create_time=0.0))
    page, watch = new_page(browser, 390)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "tenants")
    rows = page.locator("table").first.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(many_tenants)
    page.locator("#find-tenants-and-balances").fill("TENANT-57-")
    expect(rows).to_have_count(1)
    post(page, console_url, "/tenants", {"name": "from-elsewhere-tenant-57-"})
    expect(rows).to_have_count(2)  # drawn anew, and still looked for
    page.keyboard.type("of")  # where the cursor was
    expect(rows).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    watch.check(console_url)
    page.context.close()


def bill(database: Database) -> Invoice:
    """A final invoice of a hundred dollars and VAT, long overdue."""
    tenant = Tenant(
        id=new_id("ten", SystemClock()), name="acme", create_time=0.0, credit_floor_nanousd=None
    )
    database.store.create(tenant)
    draft = Invoice(
        id="inv_1",
        tenant_id=tenant.id,
        tenant_name="acme",
        first_day="2026-01-01",
        last_day="2026-01-31",
        seller=Party(name="Mill GmbH"),
        buyer=Party(name="Acme AG"),
        lines=(
            InvoiceLine(
                model="painter",
                token_class=TokenClass.IMAGES,
                price_book_id="prb_1",
                requests=900,
                tokens=0,
                price_nanousd_per_million=None,
                amount_nanousd=40 * 10**9,
                units="1000",
                price_nanousd_per_unit=40_000_000,
            ),
            InvoiceLine(
                model="small",
                token_class=TokenClass.OUTPUT,
                price_book_id="prb_1",
                requests=7,
                tokens=150_000_000,
                price_nanousd_per_million=400_000_000,
                amount_nanousd=60 * 10**9,
            ),
        ),
        subtotal_nanousd=100 * 10**9,
        rounding_nanousd=0,
        taxes=(InvoiceTax(name="VAT", rate_ppm=190_000, amount_nanousd=19 * 10**9),),
        total_nanousd=119 * 10**9,
        paid_from_credit_nanousd=0,
        due_nanousd=119 * 10**9,
        unrated_requests=0,
    )
    database.invoices.save_draft(draft)
    issued = datetime.date(2026, 2, 1)
    return database.invoices.number(
        draft, "INV", lambda number: finalized(draft, number, issued, 14)
    )


@pytest.mark.timeout(240)
def test_an_invoice_is_credited_and_paid_in_parts_and_each_is_in_the_statement(
    browser: Browser, console_url: str, database: Database
) -> None:
    invoice = bill(database)
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "payments")
    fill(page, f"agree-{invoice.tenant_id}", {"customer": "cus_1"})
    show(page, "invoices")
    expect(page.locator("td .badge")).to_have_text("overdue")
    page.get_by_role("link", name="INV-000001").click()
    page.get_by_role("heading", name="Invoice INV-000001").wait_for()
    for text in ("images", "1,000", "$0.04 each", "output tokens", "$0.40 a million"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    fill(page, "credit-note", {"amount": "10", "reason": "an outage"})
    expect(page.get_by_text("$0.00 paid, $107.10 open")).to_be_visible()
    fill(page, "record-transfer", {"reference": "DE-1", "amount": "7.10"})
    expect(page.get_by_text("$7.10 paid, $100.00 open")).to_be_visible()
    fill(page, "record-transfer", {"reference": "DE-1", "amount": "9"}, submit=False)
    expect(page.locator("dialog .problem")).to_contain_text("DE-1/2")
    page.keyboard.press("Escape")
    fill(page, "take-payment", {})
    expect(page.locator("td .badge", has_text="pending")).to_be_visible()
    fill(page, "record-transfer", {"reference": "DE-2", "amount": "120"})
    expect(page.get_by_text("$20.00 too much, which became credit")).to_be_visible()
    script = axe_script.read_text()
    check(page, script, "invoice")
    page.locator("tr", has_text="DE-2").get_by_role("link").click()
    page.get_by_role("heading", name="Statement of acme").wait_for()
    expect(page.locator("td", has_text="overpayment of INV-000001")).to_be_visible()
    check(page, script, "statement")
    page.go_back()
    page.get_by_role("button", name="Reverse the transfer DE-2").click()
    page.locator("dialog #field-reason").fill("another's money")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("td .badge", has_text="reversed")).to_be_visible()
    assert database.ledger.balances()[invoice.tenant_id] == 10 * 10**9 + 5_966_386_555
    watch.check(console_url)
    page.context.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("role", ["owner", "billing", "viewer"])
def test_axe_finds_nothing_serious_on_what_a_customer_sees(
    browser: Browser, console_url: str, database: Database, role: str
) -> None:
    invoice = bill(database)
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    made = post(page, console_url, "/users", {"login": "mara"})
    member = {"tenant": invoice.tenant_id, "user": "mara", "role": role}
    post(page, console_url, "/members", member, "PUT")
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
        show(page, name)
        check(page, axe_script.read_text(), name)
    watch.check(console_url)
    page.context.close()


def test_the_paper_of_an_invoice_fits_a_phone(browser: Browser, database: Database) -> None:
    page, watch = new_page(browser, 390)
    page.set_content(invoice_page(bill(database)).decode())
    for text in ("painter", "150,000,000", "$0.40 a million", "$60.00"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    check(page, axe_script.read_text(), "the paper")
    assert watch.urls == []
    page.context.close()


def test_the_audit_log_goes_back_to_its_first_record(browser: Browser, console_url: str) -> None:
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    for number in range(105):
        post(page, console_url, "/tenants", {"name": f"tenant-{number}"})
    show(page, "audit")
    expect(page.locator("#page-back")).to_have_count(0)
    page.click("#page-older")
    expect(page.locator("#page-back")).to_be_visible()
    expect(page.locator("td", has_text="open session").first).to_be_visible()
    check(page, axe_script.read_text(), "audit")
    page.click("#page-back")
    expect(page.locator("#page-older")).to_be_visible()
    watch.check(console_url)
    page.context.close()


def test_a_payment_that_is_unknown_is_resolved_by_a_person(
    browser: Browser, console_url: str, database: Database
) -> None:
    invoice = bill(database)
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
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "payments")
    check(page, axe_script.read_text(), "payments")
    page.locator(f"#resolve-{unknown.id}").click()
    check(page, axe_script.read_text(), "the dialog")
    page.keyboard.press("Escape")
    fill(page, f"resolve-{unknown.id}", {"end": "succeeded", "reason": "their support"})
    expect(page.locator("td .badge", has_text="succeeded")).to_be_visible()
    assert database.ledger.balances()[invoice.tenant_id] == 100 * 10**9  # the tax is no credit
    watch.check(console_url)
    page.context.close()


def test_prices_by_unit_and_for_longer_prompts_are_added_and_shown(
    browser: Browser, console_url: str, database: Database
) -> None:
    made = Model(id=new_id("mod", SystemClock()), name="studio", create_time=0.0, targets=())
    database.store.create(made)
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "prices")
    page.click("#add-prices")
    page.locator("dialog #field-model").select_option("studio")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog .problem")).to_contain_text("by another unit")
    page.fill("dialog #field-input", "0.10")
    page.fill("dialog #field-output", "0.40")
    page.fill("dialog #field-tiers", "32000 0.20")
    page.locator("dialog button[type=submit]").click()
    expect(page.locator("dialog .problem")).to_contain_text("TOKENS = INPUT, OUTPUT")
    check(page, axe_script.read_text(), "the dialog")
    page.keyboard.press("Escape")
    fill(page, "add-prices", {"model": "studio", "image": "0.04", "request": "0.002"})
    for text in ("$0.04 an image", "$0.002 a request"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    tiers = "32000 = 0.20, 0.60\n128000 = 0.40, 0.80, 0.03"
    by_token_too = {"model": "studio", "input": "0.10", "output": "0.40", "tiers": tiers}
    fill(page, "add-prices", by_token_too)
    for text in ("prompts over 32,000 tokens", "prompts over 128,000 tokens", "$0.80", "$0.03"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    by_image, by_token = (
        price for book in database.store.list(PriceBook) for price in book.prices.values()
    )
    assert by_image.units is not None
    assert by_image.units.per_image_nanousd == 40_000_000
    assert [tier.over_prompt_tokens for tier in by_token.context_tiers] == [32_000, 128_000]
    watch.check(console_url)
    page.context.close()


def test_adapters_of_a_deployment_are_named_and_changed(browser: Browser, console_url: str) -> None:
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    show(page, "deployments")
    fill(page, "deploy", {"loras": "support = /srv/adapters/support"})
    expect(page.get_by_text("1 adapter", exact=True)).to_be_visible()
    page.locator("tbody tr", has_text="1 adapter").locator("a").first.click()
    expect(page.get_by_text(f"{hostile_name}:support")).to_be_visible()
    fill(page, "change-adapters", {"loras": "legal = /srv/adapters/legal=v2"})
    expect(page.get_by_text("/srv/adapters/legal=v2")).to_be_visible()
    watch.check(console_url)
    page.context.close()


def add_fleet(database: Database) -> None:
    """Two machines, one of them closed, and a version of two files beside the plain one."""
    clock = SystemClock()
    now_s = clock.wall_s()
    (model,) = database.store.list(Model)
    (plain,) = database.store.list(ModelVersion)
    (deployment,) = database.store.list(Deployment)
    (first,) = [each for each in database.store.list(Replica) if each.name == "first"]
    whole = ModelVersion(
        id=new_id("ver", clock),
        name="v2",
        parent_id=model.id,
        create_time=now_s,
        source="hf://owner/model",
        sha256="ab" * 32,
        created_by="mara",
        capabilities=("chat", "vision"),
        context_length=65_536,
        header=FileHeader(family="qwen3", context_length=32_768, capabilities=("completions",)),
        files=(
            VersionFile("config.json", "cd" * 32, 700),
            VersionFile("model.safetensors", "ef" * 32, 5_000_000),
        ),
    )
    database.store.create(whole)
    targets = (WeightedTarget(plain.id, 9), WeightedTarget(whole.id, 1))
    database.store.update(replace(database.store.get(Model, model.id), targets=targets))
    database.store.update(replace(plain, parent_id=model.id))
    devices = [
        NodeDevice(id=f"GPU-{number}", device_type="H100", memory_bytes=80 << 30, island="nvlink0")
        for number in range(2)
    ]
    socket_device = NodeDevice(id="cpu0", device_type="CPU", memory_bytes=256 << 30, is_shared=True)
    for name, closed, held in (("gpu-1", False, (*devices, socket_device)), ("gpu-2", True, ())):
        node = Node(
            id=new_id("nod", clock),
            name=name,
            create_time=now_s,
            state=NodeState.READY,
            region="eu",
            zone="a" if closed else "b",
            labels={"disk": "ssd"},
            is_cordoned=closed,
            inventory=Inventory(
                devices=held, cpu_count=64, memory_bytes=512 << 30, address="10.0.0.7"
            ),
        )
        database.store.create(node)
        if held:
            database.store.update(replace(first, node_id=node.id, device_ids=("GPU-1",)))
    database.store.update(replace(deployment, parent_id=model.id))


def rows_of(page: Page, table: str) -> list[dict[str, str]]:
    """What a table shows, by its columns; white space as one space."""
    found = page.get_by_role("table", name=table, exact=True).evaluate(
        """table => {
          const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
          return [...table.querySelectorAll("tbody tr")].map((row) => Object.fromEntries(
            [...row.cells].map((cell, index) =>
              [names[index], cell.textContent.replace(/\\s+/g, " ").trim()])));
        }"""
    )
    return [dict(row) for row in found]


def told(page: Page, url: str, path: str) -> list[dict[str, Any]]:
    """The items that the admin API tells."""
    answer = page.request.get(f"{url}/admin/v1{path}", headers={"Authorization": f"Bearer {token}"})
    return list(answer.json()["items"])


def test_nodes_deployments_and_versions_are_shown_as_the_api_tells_them(
    browser: Browser, console_url: str, database: Database
) -> None:
    add_fleet(database)
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()

    show(page, "nodes")
    nodes = told(page, console_url, "/nodes")
    assert [node["name"] for node in nodes] == ["gpu-1", "gpu-2"]
    for node in nodes:
        card = page.locator("section.card, .card").filter(
            has=page.get_by_role("heading", name=node["name"], exact=True)
        )
        text = " ".join(card.inner_text().split())
        assert f"{node['region']} / {node['zone']}" in text
        for name, value in (
            ("State", " ".join(filter(None, (node["state"], node["closed_reason"])))),
            ("Processors", f"{node['cpu_count']:.0f}"),
            ("Memory", f"{node['memory_bytes'] >> 30} GiB"),
            ("Address", node["address"]),
            ("Labels", ", ".join(f"{name}={label}" for name, label in node["labels"].items())),
        ):
            assert f"{name} {value}" in text
        for device in node["devices"]:
            where = (
                f"island {device['island']}" if device["island"] else f"NUMA node {device['numa']}"
            )
            shown = card.get_by_label(where).get_by_role("listitem").filter(has_text=device["id"])
            assert " ".join(shown.inner_text().split()) == (
                f"{device['type']} {device['id']} {device['memory_bytes'] >> 30} GiB "
                f"{', '.join(device['replicas']) or 'idle'}"
            )

    show(page, "models")
    versions = told(page, console_url, "/versions")
    weights = sum(version["weight"] for version in versions)
    shown_versions = {row["Version"]: row for row in rows_of(page, "Model versions")}
    assert len(shown_versions) == len(versions) == 2
    for version in versions:
        row = shown_versions[f"{version['model']} @ {version['name']}"]
        files, header = version["files"], version["header"] or {}
        digest = f"{version['sha256'][:12]}…" if version["sha256"] else nothing
        assert row["Source"] == version["source"]
        assert row["SHA-256"] == digest + (f" of {len(files)} files" if len(files) > 1 else "")
        assert row["Made by"] == (version["created_by"] or nothing)
        assert row["Family"] == (header.get("family") or nothing)
        words = [", ".join(version["capabilities"]) or nothing, *version["contradictions"]]
        assert row["Abilities"] == " ".join(words)
        context = version["context_length"] or header.get("context_length")
        assert row["Context"] == (f"{context:,}" if context else "the file's")
        assert row["Share"] == f"{version['weight'] / weights:.0%}"
        title = page.locator(f'[title*="{version["sha256"]}"]') if version["sha256"] else None
        for file in files:
            assert title is not None
            assert f"{file['sha256']}  {file['name']}" in (title.get_attribute("title") or "")
    assert any(version["contradictions"] for version in versions)

    show(page, "deployments")
    (deployment,) = told(page, console_url, "/deployments")
    (row,) = rows_of(page, "Deployments")
    assert row["Deployment"] == deployment["name"]
    assert row["Model"] == f"{deployment['model']} @ {deployment['version']}"
    assert row["Engine"] == deployment["engine"]
    assert row["Ready"] == str(deployment["ready_replicas"])
    assert row["Wanted"] == f"\N{MINUS SIGN}{deployment['replicas']}+"
    assert row["State"] == "".join(("degraded", *deployment["reasons"]))

    show(page, "replicas")
    shown_replicas = {row["Replica"]: row for row in rows_of(page, "Replicas")}
    for replica in told(page, console_url, "/replicas"):
        row = shown_replicas[replica["name"]]
        assert row["Deployment"] == replica["deployment"]
        assert row["State"] == replica["state"]
        assert row["Node"] == (replica["node"] or nothing)
        assert row["Address"] == replica["address"].removeprefix("http://")
        assert row["Launches"] == str(replica["attempts"])
        assert row["Detail"] == (replica["detail"] or nothing)
    assert shown_replicas["first"]["Node"] == "gpu-1"
    watch.check(console_url)
    page.context.close()


def test_names_are_text_and_engine_keys_are_nowhere(browser: Browser, console_url: str) -> None:
    page, watch = new_page(browser)
    page.goto(f"{console_url}/#token={token}")
    page.get_by_role("heading", name="Overview").wait_for()
    for name in ("overview", "deployments", "replicas", "models"):
        page.evaluate("name => { location.hash = `#/${name}`; }", name)
        page.locator(f'nav a[href="#/{name}"][aria-current]').wait_for()
        page.locator("table").first.wait_for()
        assert canary not in page.content()
    expect(page.get_by_text(hostile_name).first).to_be_visible()
    page.evaluate("location.hash = '#/replicas'")
    expect(page.get_by_text("the process ended with status 1")).to_be_visible()
    assert re.search(
        r"default-src 'none'", page.request.get(console_url).headers["content-security-policy"]
    )
    watch.check(console_url)
    page.context.close()
