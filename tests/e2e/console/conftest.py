"""The console in a real Chromium, an app for its pages to ask, and a store of awkward things."""

import datetime
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.billing.draft import finalized
from headrace.cli.admin_site import create_admin_site
from headrace.console import create_console_app
from headrace.control.admin import create_admin_app
from headrace.control.payments.provider import Answer, ChargeOrder, RefundOrder, Verdict
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.invoices import Invoice, InvoiceLine, InvoiceTax, Party, TokenClass
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.spec.tenancy import Tenant
from headrace.storage import Database

chromium = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
axe_script = Path(__file__).parents[1] / "vendor" / "axe-core-4.14.1" / "axe.min.js"
admin_token = "an-admin-token-of-30-characters"
canary = "canary-engine-key-9f2c"
hostile_name = "small<script>alert(1)</script>"
patience_ms = 60_000  # of one step; nothing is judged by its time
arguments = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")  # Playwright's loop is in the way of the tests that have their own
def browser() -> Iterator[Browser]:
    if chromium is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments)
        expect.set_options(timeout=patience_ms)
        yield launched
        launched.close()


class ConsolePage:
    """A page, what is done there again and again, and what it asked for and complained of."""

    def __init__(self, browser: Browser, url: str, token: str, width: int, scheme: str) -> None:
        self.url = url
        self.token = token  # of the admin API
        self.urls: list[str] = []
        self.errors: list[str] = []
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        self.page: Page = context.new_page()
        self.page.set_default_timeout(patience_ms)
        self.page.on("request", self._request)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)

    def enter(self) -> None:
        """Go in by a link with the token."""
        self.page.goto(f"{self.url}/#token={self.token}")
        self.page.get_by_role("heading", name="Overview").wait_for()

    def show(self, name: str) -> None:
        """Go to a page of the console and wait until it is drawn from an answer."""
        self.page.evaluate("name => { location.hash = `#/${name}`; }", name)
        title = self.page.locator(f'nav a[href="#/{name}"][aria-current]').inner_text()
        expect(self.page.locator(".page h1")).to_have_text(title)  # not one before
        expect(self.page.locator("#live")).to_have_text("Live")

    def fill(self, button: str, values: dict[str, str], submit: bool = True) -> None:
        """Open a dialog by its button and send it."""
        self.page.locator(f"#{button}").click()
        for name, value in values.items():
            field = self.page.locator(f"dialog #field-{name}")
            if field.evaluate("node => node.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.locator("dialog button[type=submit]").click()
        if submit:
            expect(self.page.locator("dialog")).to_have_count(0)

    def tab_to(self, selector: str) -> None:
        """Press Tab until something has the focus, as somebody without a mouse would."""
        for _ in range(200):
            if self.page.evaluate("at => document.activeElement.matches(at)", selector):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no way to {selector} by Tab")

    def ask(self, method: str, path: str, value: object = None) -> Any:
        """Ask the admin API beside the page."""
        headers = {"authorization": f"Bearer {self.token}"}
        answer = self.page.request.fetch(
            f"{self.url}/admin/v1{path}", method=method, headers=headers, data=value
        )
        assert answer.ok, answer.text()
        return answer.json()

    def check_axe(self, name: str) -> None:
        """Run axe-core in the page, beside its content policy, which lets no script in."""
        if self.page.evaluate("typeof axe === 'undefined'"):
            self.page.evaluate(axe_script.read_text())
        found = self.page.evaluate(
            "axe.run({ resultTypes: ['violations'], preload: false, iframes: false })"
            ".then(({ violations }) => violations"
            ".filter(({ impact }) => impact === 'serious' || impact === 'critical')"
            ".map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`))"
        )
        assert found == [], name

    def leave(self) -> None:
        """Close it: nothing went wrong, and no request left for elsewhere."""
        self.page.context.close()
        assert self.errors == []
        elsewhere = [
            each for each in self.urls if not each.startswith((self.url, f"blob:{self.url}"))
        ]
        assert elsewhere == []

    def _request(self, request: Request) -> None:
        self.urls.append(request.url)

    def _said(self, message: Any) -> None:
        expected = ("401", "403", "404", "409", "503")  # answers that pages deal with
        if message.type == "error" and not any(code in message.text for code in expected):
            self.errors.append(message.text)


OpenConsole = Callable[..., ConsolePage]


@pytest.fixture
def open_console(browser: Browser) -> OpenConsole:
    """Opens a page of a console by its address."""

    def open_page(
        url: str, token: str = admin_token, *, width: int = 1280, scheme: str = "light"
    ) -> ConsolePage:
        return ConsolePage(browser, url, token, width, scheme)

    return open_page


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
    opened = open_sqlite_copy(tmp_path / "headrace.db")
    fill_store(opened)
    yield opened
    opened.close()


@pytest.fixture
def console_url(database: Database) -> Iterator[str]:
    """The console and the admin API alone."""
    admin = create_admin_app(database, admin_token, pepper=b"p" * 32, payment_provider=Provider())
    listener = socket.create_server(("127.0.0.1", 0))
    site = create_admin_site(admin, create_console_app())
    config = uvicorn.Config(site, log_level="warning", lifespan="off", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def invoice(database: Database) -> Invoice:
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
