"""A control plane's admin API on a real port of loopback, over a store in a temporary directory."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from headrace.cli.main import main
from headrace.control.admin import create_admin_app
from headrace.control.payments.provider import (
    Answer,
    ChargeOrder,
    PaymentProvider,
    RefundOrder,
    Verdict,
)
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.storage import Database

Run = Callable[..., int]


@dataclass(frozen=True)
class RunningPlatform:
    """Where the platform is and what is in it."""

    url: str
    data_dir: Path
    database: Database
    clock: ManualClock


class ObligingProvider:
    """A payment provider that takes and gives whatever it is told."""

    name = "obliging"

    def charge(self, order: ChargeOrder) -> Answer:
        return Answer(Verdict.SUCCEEDED, f"at_{order.idempotency_key}")

    def refund(self, order: RefundOrder) -> Answer:
        return Answer(Verdict.SUCCEEDED, f"back_{order.idempotency_key}")


@pytest.fixture
def payment_provider() -> PaymentProvider:
    return ObligingProvider()


@pytest.fixture
def run() -> Run:
    """Run one command in this process and return its exit status."""

    def run_main(*arguments: str) -> int:
        try:
            return main(arguments)
        except SystemExit as leaving:
            return int(leaving.code or 0)

    return run_main


@pytest.fixture
def platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payment_provider: PaymentProvider
) -> Iterator[RunningPlatform]:
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "headrace.db", clock)
    token = "an-admin-token-of-30-characters"
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_admin_app(
        database, token, pepper=b"p" * 32, clock=clock, payment_provider=payment_provider
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    (tmp_path / "run").mkdir()
    address = tmp_path / "run" / "admin.json"
    address.touch(0o600)
    address.write_text(json.dumps({"admin_url": url, "token": token}))
    monkeypatch.setenv("HEADRACE_DATA_DIR", str(tmp_path))
    yield RunningPlatform(url, tmp_path, database, clock)
    server.should_exit = True
    thread.join()
    listener.close()  # which a server that was stopped at once leaves to us
    database.close()
