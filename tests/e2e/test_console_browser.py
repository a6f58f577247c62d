"""The console in a real Chromium: sign in, read every page, sign out; nothing overflows a phone."""

import asyncio
import contextlib
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.cli.admin_site import create_admin_site
from headrace.console import create_console_app
from headrace.control.admin import create_admin_app
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model, ModelVersion, WeightedTarget
from headrace.storage import Database, open_sqlite

pytestmark = pytest.mark.e2e

chromium = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
token = "an-admin-token-of-30-characters"
canary = "canary-engine-key-9f2c"
pages = (
    "overview", "playground", "keys", "limits", "start", "deployments", "replicas", "models",
    "usage", "invoices", "wallets", "prices", "tenants", "webhooks", "audit",
)  # fmt: skip
wait_s = 15.0


class Browser:
    """A page of Chromium, driven over its debugging protocol."""

    def __init__(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: object) -> Any:
        self._number += 1
        number = self._number
        await self._connection.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._connection.receive_json(timeout=wait_s)
            if message.get("id") == number:
                return message.get("result")
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]))
            entry = message.get("params", {}).get("entry", {})
            text = entry.get("text", "")
            if entry.get("level") == "error" and not any(c in text for c in ("401", "503")):
                self.errors.append(str(entry))

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True)
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(wait_s):
            while not await self.value(f"Boolean({expression})"):
                await self.value("new Promise(requestAnimationFrame).then(() => 0)")

    async def open(self, url: str, width: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")


@contextlib.asynccontextmanager
async def running_browser(profile: Path) -> AsyncIterator[Browser]:
    assert chromium is not None
    process = await asyncio.create_subprocess_exec(
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            port = None
            while port is None:
                line = await process.stderr.readline()
                assert line, "chromium ended"
                port = re.search(rb"DevTools listening on ws://[^:]+:(\d+)/", line)
        drain = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{int(port[1])}/json") as answer:
                targets = await answer.json()
            address = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as connection:
                browser = Browser(connection)
                for domain in ("Page", "Runtime", "Log"):
                    await browser.call(f"{domain}.enable")
                yield browser
    finally:
        process.terminate()
        await process.wait()
    await drain


def fill(database: Database) -> None:
    """One model with a deployment of two replicas, of which one is ready."""
    clock = SystemClock()
    now_s = clock.wall_s()
    version = ModelVersion(
        id=new_id("ver", clock), name="v1", parent_id="", create_time=now_s, source="small.gguf"
    )
    model = Model(
        id=new_id("mod", clock),
        name="small<script>alert(1)</script>",
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


@pytest.fixture
def console_url(tmp_path: Path) -> Iterator[str]:
    database = open_sqlite(tmp_path / "headrace.db")
    fill(database)
    admin = create_admin_app(database, token, pepper=b"p" * 32)
    listener = socket.create_server(("127.0.0.1", 0))
    site = create_admin_site(admin, create_console_app())
    server = uvicorn.Server(uvicorn.Config(site, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    database.close()


@pytest.mark.skipif(chromium is None, reason="no Chromium on this machine")
async def test_sign_in_read_every_page_and_sign_out(console_url: str, tmp_path: Path) -> None:
    async with running_browser(tmp_path / "profile") as browser:
        await browser.open(console_url, 1280)
        await browser.until("document.getElementById('sign-in')")
        await sign_in(browser, "wrong-token-wrong-token")
        await browser.until("document.body.innerText.includes('not the platform')")
        await sign_in(browser, token)
        await browser.until("document.querySelector('h1')?.textContent === 'Overview'")
        assert await browser.value("document.cookie") == ""
        for width in (1280, 390):
            for page in pages:
                await browser.open(f"{console_url}/#/{page}", width)
                await browser.until(
                    f"document.querySelector('nav a[href=\"#/{page}\"]')"
                    "?.getAttribute('aria-current') === 'page'"
                )
                await browser.until("document.getElementById('live').textContent === 'Live'")
                assert await browser.value("document.documentElement.scrollWidth") <= width, page
                assert canary not in await browser.value("document.documentElement.outerHTML")
        await browser.open(f"{console_url}/#/replicas", 1280)
        await browser.until("document.body.innerText.includes('the process ended with status 1')")
        await browser.open(f"{console_url}/#/models", 1280)
        await browser.until("document.body.innerText.includes('<script>alert(1)')")
        await browser.value("document.getElementById('sign-out').click()")
        await browser.until("document.getElementById('sign-in')")
        await browser.open(f"{console_url}/#/usage", 1280)
        await browser.until("document.getElementById('sign-in')")
        assert browser.errors == []


@pytest.mark.skipif(chromium is None, reason="no Chromium on this machine")
async def test_a_token_in_the_fragment_signs_in_and_leaves_the_address(
    console_url: str, tmp_path: Path
) -> None:
    async with running_browser(tmp_path / "profile") as browser:
        await browser.open(f"{console_url}/#token={token}", 1280)
        await browser.until("document.querySelector('h1')?.textContent === 'Overview'")
        assert token not in await browser.value("location.href")
        assert browser.errors == []


async def sign_in(browser: Browser, secret: str) -> None:
    await browser.value(
        "document.getElementById('token').value = " + repr(secret) + ";"
        "document.getElementById('sign-in').requestSubmit()"
    )


@pytest.mark.skipif(chromium is None, reason="no Chromium on this machine")
async def test_a_key_is_made_shown_once_and_revoked(console_url: str, tmp_path: Path) -> None:
    async with running_browser(tmp_path / "profile") as browser:
        await browser.open(f"{console_url}/#token={token}", 1280)
        await browser.until("document.querySelector('h1')?.textContent === 'Overview'")
        await browser.open(f"{console_url}/#/tenants", 1280)
        for button, fields in (
            ("create-tenant", {"name": "acme"}),
            ("create-project", {"name": "web"}),
        ):
            await press(browser, button)
            await submit_dialog(browser, fields)
        await browser.open(f"{console_url}/#/keys", 1280)
        await press(browser, "create-key")
        await submit_dialog(browser, {"name": "ci", "rpm": "60"}, shows="#secret")
        await browser.until("document.getElementById('secret').textContent.startsWith('hr_')")
        await press(browser, "done")
        await browser.until("document.body.innerText.includes('60 requests/min')")
        assert not await browser.value("document.getElementById('secret')")
        await browser.value("document.querySelector('[id^=revoke-]').click()")
        await submit_dialog(browser, {})
        await browser.until("document.querySelector('td .badge')?.textContent === 'revoked'")
        assert browser.errors == []


async def press(browser: Browser, identifier: str) -> None:
    await browser.until(f"document.getElementById('{identifier}')")
    await browser.value(f"document.getElementById('{identifier}').click()")


async def submit_dialog(
    browser: Browser, fields: dict[str, str], shows: str = "body:not(:has(dialog))"
) -> None:
    await browser.until("document.querySelector('dialog form')")
    for name, value in fields.items():
        await browser.value(f"document.getElementById('field-{name}').value = {value!r}")
    await browser.value("document.querySelector('dialog form').requestSubmit()")
    await browser.until(f"document.querySelector({shows!r})")
