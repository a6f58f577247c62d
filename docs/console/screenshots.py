"""Writes the console's screenshots into this folder: python docs/console/screenshots.py

It starts the demo in a directory of its own, beside a server that speaks Stripe's API, makes two
tenants with projects, keys, limits, terms, taxes, an invoice of last month and payments, and asks
the model as them for a minute.
"""

import datetime
import json
import os
import random
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import Browser, Page, sync_playwright

from headrace.sim.platform_process import PlatformProcess
from headrace.sim.stripe_server import running_stripe
from headrace.spec.tenancy import Tenant
from headrace.storage import open_sqlite

folder = Path(__file__).parent
chromium = "/usr/bin/chromium"
arguments = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
questions = (
    "Name three rivers and the seas that they reach.",
    "What is a mill race?",
    "Write a short poem about water.",
    "How does a water wheel work?",
    "List five words that rhyme with stream.",
)
dice = random.Random(7)  # noqa: S311 -- what is asked need not be secret
settle_ms = 1500  # charts and the next event
warm_up_s = 60.0
patience_ms = 120_000


class Platform:
    """The platform that runs, by its admin API and its gateway."""

    model = "smollm2-135m-instruct"

    def __init__(self, process: PlatformProcess) -> None:
        self.process = process

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Ask the admin API."""
        return self._ask(f"{self.process.admin_url}/admin/v1{path}", method, body,
                         self.process.admin_token)  # fmt: skip

    def chat(self, key: str, question: str) -> None:
        """Ask the model as somebody."""
        body = {"model": self.model, "max_tokens": dice.randint(8, 48), "stream": True,
                "messages": [{"role": "user", "content": question}]}  # fmt: skip
        self._ask(f"{self.process.gateway_url}/v1/chat/completions", "POST", body, key)

    @staticmethod
    def _ask(url: str, method: str, body: object, token: str) -> Any:
        request = urllib.request.Request(  # noqa: S310 -- the platform's own addresses
            url, None if body is None else json.dumps(body).encode(), method=method,
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            content = answer.read()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return json.loads(content) if is_json else None


def furnish(platform: Platform) -> list[str]:
    """Make who asks; their keys."""
    model = platform.admin("GET", "/models")["items"][0]
    platform.admin("PATCH", f"/models/{model['id']}",
                   {"objectives": {"ttft_s": 2.0, "inter_token_s": 0.5}})  # fmt: skip
    platform.admin("POST", "/device-prices", {"prices": {"CPU": {"usd_per_hour": "0.04"}}})
    furnish_prices(platform)
    furnish_seller(platform)
    keys = []
    for tenant, credit, projects in (
        ("acme", "50", {"web": ("website", 600), "lab": ("notebooks", 120)}),
        ("watermill", "20", {"support": ("helpdesk", 300)}),
    ):
        platform.admin("POST", "/tenants", {"name": tenant, "credit_usd": credit})
        for project, (name, rpm) in projects.items():
            platform.admin("POST", "/projects", {"tenant": tenant, "name": project})
            made = platform.admin("POST", "/keys", {
                "project": f"{tenant}/{project}", "name": name,
                "limits": {"requests_per_minute": rpm, "budget_usd": "5", "budget_period": "month"},
            })  # fmt: skip
            keys.append(made["key"])
    furnish_billing(platform)
    return keys


def furnish_prices(platform: Platform) -> None:
    """Say what tokens cost, dearer for long prompts, and what is not sold by token."""
    platform.admin("POST", "/prices", {
        "prices": {
            platform.model: {
                "input_usd_per_million": "0.10", "cached_input_usd_per_million": "0.02",
                "output_usd_per_million": "0.40",
                "context_tiers": [{"over_prompt_tokens": 4096, "input_usd_per_million": "0.20",
                                   "output_usd_per_million": "0.60"}],
            },
            "painter": {"usd_per_image": "0.04"},
            "listener": {"usd_per_second": "0.0001"},
            "reranker": {"usd_per_request": "0.002"},
        },
        "priority_percent": {"interactive": 150}, "region_percent": {"eu": 110},
    })  # fmt: skip


def furnish_seller(platform: Platform) -> None:
    """Say who writes the invoices, what taxes there are, and who may pay in euros."""
    platform.admin("PUT", "/seller", {
        "name": "Mill Race GmbH", "address": ["Am Wehr 1", "89073 Ulm"], "country": "DE",
        "tax_id": "DE123456789", "exchange_rates": {"EUR": "0.92", "GBP": "0.79"},
        "payment_note": "IBAN DE02 1203 0000 0000 2020 51",
        "taxes": [
            {"name": "VAT 19%", "percent": 19, "countries": ["DE"]},
            {"name": "VAT 0%", "percent": 0, "countries": ["AT", "FR", "IE", "NL"],
             "note": "Reverse charge: the recipient owes the tax."},
        ],
    })  # fmt: skip


def furnish_billing(platform: Platform) -> None:
    """Agree on terms, give addresses, and have the provider take some money."""
    platform.admin("PUT", "/terms", {"discount_percent": 0,
                                     "free_tokens": {platform.model: 100_000}})  # fmt: skip
    platform.admin("PUT", "/tenants/acme/terms", {
        "minimum_usd": "500", "discount_percent": 3, "free_tokens": {platform.model: 1_000_000},
        "volume": [{"over_usd": "1000", "percent": 5}, {"over_usd": "10000", "percent": 12}],
    })  # fmt: skip
    platform.admin("PUT", "/tenants/acme/billing-profile", {
        "name": "Acme Instruments Ltd", "address": ["4 Quay Street", "Galway"], "country": "IE",
        "currency": "EUR", "email": "accounts@acme.example",
    })  # fmt: skip
    for tenant, customer in (("acme", "cus_4kQ9"), ("watermill", "cus_declined")):
        platform.admin("PUT", f"/tenants/{tenant}/payment-agreement", {
            "customer": customer,
            "recharge": {"below_usd": "100", "amount_usd": "250", "a_day_max": 2},
        })  # fmt: skip


def furnish_invoices(platform: Platform) -> str:
    """Bill last month's commitment, take some back, have some of the rest paid; its id."""
    this_month = datetime.datetime.now(datetime.UTC).date().replace(day=1)
    last_day = this_month - datetime.timedelta(days=1)
    with closing(open_sqlite(platform.process.data_dir / "headrace.db")) as database:
        for tenant in database.store.list(Tenant):  # who was not there committed to nothing
            database.store.update(msgspec.structs.replace(tenant, create_time=0.0))
    month = last_day.strftime("%Y-%m")
    drafts = platform.admin("POST", "/invoices", {"month": month})["items"]
    [of_acme] = [draft["id"] for draft in drafts if draft["tenant"] == "acme"]
    platform.admin("POST", f"/invoices/{of_acme}/finalize", {})  # the others charge nothing
    platform.admin("POST", f"/invoices/{of_acme}/credit-notes",
                   {"amount_usd": "40", "reason": "an outage on the 12th"})  # fmt: skip
    for reference, amount in (("DE89 0042 1177", "200.00"), ("DE89 0042 1203", "100.00")):
        platform.admin("POST", f"/invoices/{of_acme}/payments",
                       {"reference": reference, "amount": amount})  # fmt: skip
    platform.admin("POST", "/invoices", {"month": time.strftime("%Y-%m", time.gmtime())})
    deadline = time.monotonic() + patience_ms / 1000
    while platform.admin("GET", "/tenants/acme")["balance"]["nanousd"] <= 0:  # till it recharged
        assert time.monotonic() < deadline, "acme has no credit"
        time.sleep(1)
    return str(of_acme)


@contextmanager
def traffic(platform: Platform, keys: list[str]) -> Iterator[None]:
    """Requests of all keys, one after the other each, until the block ends."""
    stop = threading.Event()

    def run(key: str) -> None:
        while not stop.is_set():
            platform.chat(key, dice.choice(questions))
            stop.wait(dice.uniform(0.1, 1.5))

    threads = [threading.Thread(target=run, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    stop.wait(warm_up_s)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def running_platform() -> Iterator[Platform]:
    """The demo in an empty directory, with a payment provider."""
    with tempfile.TemporaryDirectory() as directory, running_stripe() as stripe:
        payments = Path(directory) / "payments.json"
        settings = {"provider": "stripe", "api_key": stripe.api_key, "api_base": stripe.url}
        payments.write_text(json.dumps(settings))
        payments.chmod(0o600)
        os.environ["HEADRACE_PAYMENTS_FILE"] = str(payments)
        with PlatformProcess.start(Path(directory), "--demo") as process:
            yield Platform(process)


def main() -> None:
    """Sign in, let some requests run, and take the pictures."""
    with running_platform() as platform, sync_playwright() as playwright:
        keys = furnish(platform)
        invoice = furnish_invoices(platform)
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = new_page(browser)
        page.goto(f"{platform.process.admin_url}/#token={platform.process.admin_token}")
        page.get_by_role("heading", name="Overview").wait_for()
        with traffic(platform, keys):
            shoot_pages(page)
            shoot_invoice(page, invoice)
            chat(page, keys[0])
            page.screenshot(path=folder / "playground.png")
            page.get_by_role("link", name="why there").first.click()
            page.get_by_text("chosen", exact=True).wait_for()
            page.screenshot(path=folder / "explain.png")
            shoot_customer(platform, browser)
            shoot_adapters(platform, page)
            shoot(page, "costs")  # the sums of device hours come after a minute
            page.set_viewport_size({"width": 390, "height": 844})
            shoot(page, "overview", "overview-phone")
            shoot(page, "payments", "payments-phone", whole=True)
        browser.close()


def new_page(browser: Browser) -> Page:
    """A window of a usual size, patient with a busy machine."""
    page = browser.new_page(viewport={"width": 1360, "height": 900}, color_scheme="light")
    page.set_default_timeout(patience_ms)
    return page


def shoot_pages(page: Page) -> None:
    """The operator's pages."""
    shoot(page, "overview", whole=True)
    page.click("#theme")
    shoot(page, "overview", "overview-dark", whole=True)
    shoot(page, "terms", "terms-dark", whole=True)
    page.click("#theme")
    show(page, "usage")
    page.click("#by-key")
    page.wait_for_timeout(settle_ms)
    page.screenshot(path=folder / "usage.png")
    for name in ("models", "requests", "keys", "limits", "nodes", "invoices", "prices"):
        shoot(page, name)
    for name in ("terms", "payments"):
        shoot(page, name, whole=True)
    show(page, "deployments")
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="Rollout").wait_for()
    page.wait_for_timeout(settle_ms)
    picture(page, "deployment", whole=True)


def shoot_adapters(platform: Platform, page: Page) -> None:
    """A deployment with LoRA adapters, which waits for its first request."""
    made = platform.admin("POST", "/deployments", {
        "model": platform.model, "name": "assistants", "replicas": 0,
        "loras": [{"name": name, "source": f"/srv/adapters/{name}"}
                  for name in ("support", "legal", "sql")],
    })  # fmt: skip
    page.evaluate("id => { location.hash = `#/deployment?id=${id}`; }", made["id"])
    page.get_by_role("heading", name="assistants").wait_for()
    page.wait_for_timeout(settle_ms)
    page.screenshot(path=folder / "adapters.png")


def shoot_invoice(page: Page, invoice: str) -> None:
    """One invoice with all that came after it, and the statement in which its payments are."""
    page.evaluate("id => { location.hash = `#/invoice?id=${id}`; }", invoice)
    page.get_by_text("DE89 0042 1203").wait_for()
    picture(page, "invoice", whole=True)
    page.locator("tr", has_text="DE89 0042 1203").get_by_role("link").click()
    page.get_by_role("heading", name="Statement of acme").wait_for()
    page.wait_for_timeout(settle_ms)
    page.screenshot(path=folder / "statement.png")


def shoot_customer(platform: Platform, browser: Browser) -> None:
    """What somebody sees who pays: the terms that were agreed with them."""
    made = platform.admin("POST", "/users", {"login": "mara"})
    platform.admin("PUT", "/members", {"tenant": "acme", "user": "mara", "role": "owner"})
    page = new_page(browser)
    page.goto(platform.process.admin_url)
    page.fill("#login", "mara")
    page.fill("#token", made["initial_password"])
    page.click("#sign-in button[type=submit]")
    page.get_by_role("heading", name="Overview").wait_for()
    shoot(page, "terms", "customer-terms")
    shoot(page, "overview", "customer")


def shoot(page: Page, name: str, file: str | None = None, *, whole: bool = False) -> None:
    """A picture of a page."""
    show(page, name)
    picture(page, file or name, whole=whole)


def picture(page: Page, file: str, *, whole: bool) -> None:
    """A picture of what is shown, or of the whole page in a window as high as that."""
    size = page.viewport_size
    assert size is not None
    if whole:
        height = page.evaluate("() => document.documentElement.scrollHeight")
        page.set_viewport_size({**size, "height": max(size["height"], height)})
        page.wait_for_timeout(settle_ms)
    page.screenshot(path=folder / f"{file}.png")
    page.set_viewport_size(size)


def show(page: Page, name: str) -> None:
    """Go to a page and wait until it is drawn."""
    page.evaluate("name => { location.hash = `#/${name}`; }", name)
    title = page.locator(f'nav a[href="#/{name}"][aria-current]').inner_text()
    page.locator(".page h1", has_text=title).wait_for()  # not that of the page before
    page.wait_for_timeout(settle_ms)


def chat(page: Page, key: str) -> None:
    """Ask the demo model something, at two temperatures side by side."""
    show(page, "playground")
    page.fill("#play-key", key)
    page.locator("#play-key").dispatch_event("change")
    page.locator("#model-A option", has_text=Platform.model).wait_for(state="attached")
    page.click("#compare")
    page.fill("#max-tokens", "60")
    page.fill("#prompt", "Explain in two sentences what a headrace is.")
    page.click("#send")
    page.locator("#send").wait_for(state="visible", timeout=120_000)


if __name__ == "__main__":
    main()
