"""Requests made up from the OpenAPI document: whatever is sent, nothing is the server's fault."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.base.clock import SystemClock
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.openapi import openapi_document
from headrace.engine_server.reference_page import all_routes
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.http import server
from headrace.sim import engine_process

examples = 6  # of each operation
document = openapi_document(all_routes(), "1")
schema = schemathesis.openapi.from_dict(document)
messages = [{"role": "user", "content": "hello"}]
few = {"options": {"num_predict": 4}}
plain: dict[str, dict[str, Any]] = {  # what each generating route answers
    "/v1/chat/completions": {"messages": messages, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": messages, "max_tokens": 4},
    "/api/chat": {"messages": messages, **few},
    "/api/generate": {"prompt": "hello", **few},
}
left_out = {"model", "deadline_ms", "max_completion_tokens"}  # 504 is right for a deadline
none = st.just(list[str]())
operations = [(path, method) for path, methods in document["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def url(byte_model: Path) -> Iterator[str]:
    """A server with a fake engine, in a thread of its own."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(byte_model, started)))
    thread.start()
    address, loop, stop = started.result(60)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _serve(model: Path, started: "Future[Any]") -> None:
    config = EngineConfig(
        model_path="fake.gguf",
        kv_tokens=1024,
        sequences_max=8,
        step_rows=64,
        waiting_max=64,
        cache_namespace="fake",
    )
    command = engine_process.command("serve")
    service = ModelService(ServiceConfig(model, "bytes", config), SystemClock(), command=command)
    stop = asyncio.Event()
    try:
        await service.start()
        await service.engine.wait_ready()
        sock = server.bind("127.0.0.1", 0)
        host, port = server.address_of(sock)
        started.set_result((f"http://{host}:{port}", asyncio.get_running_loop(), stop))
        app = EngineServerApp(service, "key")
        await server.serve(app, sock, drain_timeout_s=5, stop=stop)
    finally:
        await service.close()


quiet = settings(
    max_examples=examples,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def check_answer(url: str, case: Any) -> None:
    answer = case.call(base_url=url, headers={"Authorization": "Bearer key"})
    assert answer.status_code < 500, (answer.status_code, answer.text, case.body)


@pytest.mark.parametrize(("path", "method"), operations)
def test_no_request_is_answered_with_a_failure(url: str, path: str, method: str) -> None:
    operation = schema[path][method.upper()]

    @quiet
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body["model"] = "bytes"  # so that more than the name is looked at
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if isinstance(case.body.get(name), int):
                    case.body[name] = min(case.body[name], 4)
        check_answer(url, case)

    check()


@pytest.mark.parametrize("path", sorted(plain))
def test_no_field_of_a_good_request_makes_it_a_failure(url: str, path: str) -> None:
    """Bodies that are made up whole are nearly all refused; these are mostly answered."""

    @quiet
    @given(case=schema[path]["POST"].as_strategy(), data=st.data())
    def check(case: Any, data: st.DataObject) -> None:
        assert isinstance(case.body, dict)
        names = sorted(case.body.keys() - plain[path].keys() - left_out)
        some = data.draw(
            st.lists(st.sampled_from(names), max_size=3, unique=True) if names else none
        )
        made_up = {name: case.body[name] for name in some}
        case.body = {"model": "bytes", **plain[path], **made_up}
        check_answer(url, case)

    check()
