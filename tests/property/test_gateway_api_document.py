"""Requests made up from the gateway's own document: no 5xx, and no secret in what is said."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from headrace.gateway.openapi import described
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name, secret_of_key

pytestmark = pytest.mark.filterwarnings("default")  # schemathesis' own; ours are errors elsewhere
examples_per_operation = 3
engine_key = "canary-engine-key-of-the-replica"
secrets = (engine_key, secret_of_key.hex(), "Traceback (most")


async def run(directory: Path, started: "Future[Any]") -> None:
    stop = asyncio.Event()
    async with gateway_site(directory, [FakeEngine(api_key=engine_key)]) as site:
        started.set_result((site, asyncio.get_running_loop(), stop))
        await stop.wait()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    """A gateway in a thread of its own."""
    started: Future[tuple[GatewaySite, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    directory = tmp_path_factory.mktemp("gateway")
    thread = threading.Thread(target=lambda: asyncio.run(run(directory, started)))
    thread.start()
    running, loop, stop = started.result(60)
    try:
        yield running
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture(scope="module")
def client(site: GatewaySite) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    with httpx.Client(base_url=site.url, headers=headers, timeout=30) as asking:
        yield asking


def test_every_route_is_in_the_document_and_described(
    site: GatewaySite, client: httpx.Client
) -> None:
    document = client.get("/openapi.json").json()
    told = {(method.upper(), path) for path, each in document["paths"].items() for method in each}
    assert told == set(described)
    assert all(
        operation["summary"] for each in document["paths"].values() for operation in each.values()
    )
    assert not any(path.startswith("/internal") for path in document["paths"])
    assert httpx.get(f"{site.url}/openapi.json").status_code == 401


def test_no_request_of_the_document_is_answered_with_a_failure(
    site: GatewaySite, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    result = pytest.importorskip("schemathesis.core.result")
    caplog.set_level(logging.DEBUG)
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    found = list(schema.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, result.Ok)]
    assert len(operations) == len(found) == len(described)
    for operation in operations:

        @settings(
            max_examples=examples_per_operation,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if isinstance(case.body, dict):
                case.body["model"] = model_name  # so that more than the name is looked at
            answer = case.call(
                base_url=site.url, headers={"Authorization": f"Bearer {site.api_key}"}
            )
            # 503: no replica of the model can take it, which a caller's request does not change.
            assert answer.status_code < 500, (case.method, case.path, answer.text)
            for secret in secrets:
                assert secret not in answer.text

        ask()
    said = "".join(
        f"{record.getMessage()} {record.exc_text or ''}"
        for record in caplog.records
        if record.name.startswith("headrace")
    )
    kept = site.access_log.getvalue().decode() + client.get("/metrics").text
    for secret in secrets:
        assert secret not in said + kept
