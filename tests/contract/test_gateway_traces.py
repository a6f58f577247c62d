"""A request's trace says what happened to it, also where little did, and nothing that it wrote."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.observability.otlp import OtlpTracer
from headrace.sim.engine import Behaviour, Failure, FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

request_name = "POST /v1/chat/completions"
trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
canary = "canary-9f2c71"


class Traced:
    """A tracer that keeps its spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtlpTracer(provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order of their start."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        """The request's phases in their order, each with its error."""
        return [
            " ".join(filter(None, (span.name, str((span.attributes or {}).get("error.type", "")))))
            for span in self.spans
        ]


@asynccontextmanager
async def traced_site(
    directory: Path, engines: list[FakeEngine]
) -> AsyncIterator[tuple[Traced, GatewaySite]]:
    traced = Traced()
    async with gateway_site(directory, engines, tracer=traced.tracer) as site:
        yield traced, site


async def chat(site: GatewaySite, **fields: Any) -> int:
    body = {"model": model_name, "messages": [{"role": "user", "content": canary}], **fields}
    headers = {
        "Authorization": f"Bearer {site.api_key}",
        "traceparent": f"00-{trace_id}-{parent_id}-01",
        "tracestate": f"vendor={canary}",
    }
    async with (
        aiohttp.ClientSession(site.url, headers=headers) as client,
        client.post("/v1/chat/completions", json=body) as answer,
    ):
        await answer.read()
        return answer.status


@pytest.mark.parametrize("stream", [True, False])
async def test_phases_follow_each_other_and_the_engine_gets_the_attempts_span(
    tmp_path: Path, stream: bool
) -> None:
    engine = FakeEngine()
    async with traced_site(tmp_path, [engine]) as (traced, site):
        assert await chat(site, stream=stream) == 200
        await site.settlements(1)
    assert traced.names() == [request_name, "admission", "queue", "attempt", "settle"]
    request, *phases = traced.spans
    assert request.parent is not None
    assert request.parent.span_id == int(parent_id, 16)
    assert request.context is not None
    for phase in phases:
        assert phase.parent is not None
        assert phase.parent.span_id == request.context.span_id
    attempt = phases[2].context
    assert attempt is not None
    sent = engine.seen[0].headers
    assert sent["traceparent"] == f"00-{trace_id}-{attempt.span_id:016x}-01"
    assert canary not in str({**sent, **dict(request.attributes or {})})


async def test_an_attempt_that_failed_and_the_one_after_it_are_both_there(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine()]
    engines[1].plan = engines[0].plan  # whichever is asked first breaks
    engines[0].plan.append(Behaviour(failure=Failure.CUT))
    async with traced_site(tmp_path, engines) as (traced, site):
        assert await chat(site) == 200
    assert traced.names() == [
        request_name,
        "admission",
        "queue",
        "attempt upstream_failed",
        "queue",
        "attempt",
        "settle",
    ]
    assert (traced.spans[0].attributes or {})["headrace.attempts"] == 2


async def test_a_refusal_is_a_failed_request_without_attempts(tmp_path: Path) -> None:
    async with traced_site(tmp_path, [FakeEngine()]) as (traced, site):
        assert await chat(site, model="nothing") == 404
    (request,) = traced.spans
    attributes = request.attributes or {}
    assert attributes["error.type"] == "not_found"
    assert attributes["http.response.status_code"] == 404
    assert not request.status.is_ok


async def test_histograms_tell_the_trace_to_who_reads_openmetrics(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(default=Behaviour(gate=gate))
    async with traced_site(tmp_path, [engine]) as (_, site):
        site.limit_places(1)
        asked = [asyncio.create_task(chat(site, stream=True))]
        await engine.wait_for(1)
        asked.append(asyncio.create_task(chat(site, stream=True)))  # waits for the first
        for _ in iter(site.gateway.room.waiting_count, 1):
            await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*asked) == [200, 200]
        await site.settlements(2)
        accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        async with aiohttp.ClientSession(site.url) as client:
            async with client.get("/metrics", headers=accept) as answer:
                with_exemplars = await answer.text()
            async with client.get("/metrics") as answer:
                plain = await answer.text()
    for name in ("first_output", "request_duration", "queue_wait"):
        assert re.search(
            rf'headrace_gateway_{name}_seconds_bucket{{.*}} \d+.* # {{trace_id="{trace_id}"}}',
            with_exemplars,
        ), name
    assert with_exemplars.endswith("# EOF\n")
    assert trace_id not in plain
