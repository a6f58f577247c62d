import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.base.clock import SystemClock
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.embedding_routes import Vector
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.http.asgi import Message
from headrace.observability.otlp import OtlpTracer
from headrace.observability.tracing import Tracer


class LetterEncoder:
    """Each letter is a token; a text's vector says which of a, b and c it has."""

    context_length = 8
    dimensions = 3

    def encode_text(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    async def embed(self, token_ids: list[list[int]]) -> list[Vector]:
        return [self._vector(ids) for ids in token_ids]

    def _vector(self, token_ids: list[int]) -> Vector:
        present = [float(ord(letter) in token_ids) for letter in "abc"]
        length = sum(present) ** 0.5 or 1.0
        return [value / length for value in present]


class Server:
    """Asks one app."""

    def __init__(self, app: EngineServerApp) -> None:
        self._app = app

    async def post(
        self, path: str, headers: tuple[tuple[bytes, bytes], ...] = (), **fields: Any
    ) -> tuple[int, Any]:
        sent: list[Message] = []

        async def receive() -> Message:
            body = json.dumps({"model": "bytes", **fields}).encode()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(
            {"type": "http", "method": "POST", "path": path, "headers": [*headers]}, receive, send
        )
        return sent[0]["status"], json.loads(sent[1]["body"])


@asynccontextmanager
async def serving(
    model: Path,
    config: EngineConfig,
    encoder: LetterEncoder | None,
    tracer: Tracer | None = None,
) -> AsyncIterator[Server]:
    service = ModelService(ServiceConfig(model, "bytes", config), SystemClock())
    try:
        yield Server(EngineServerApp(service, None, encoder, tracer=tracer))
    finally:
        await service.close()


@pytest.fixture
async def server(byte_model: Path, engine_config: EngineConfig) -> AsyncIterator[Server]:
    async with serving(byte_model, engine_config, LetterEncoder()) as made:
        yield made


async def test_each_input_has_its_vector_in_either_encoding(server: Server) -> None:
    status, body = await server.post("/v1/embeddings", input=["ab", "c"])
    assert status == 200
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert body["data"][1]["embedding"] == [0, 0, 1]
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    _, packed = await server.post("/v1/embeddings", input=[99], encoding_format="base64")
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack("<3f", data) == (0, 0, 1)


async def test_vectors_are_a_span_of_the_callers_trace_also_where_they_fail(
    byte_model: Path, engine_config: EngineConfig
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    async with serving(byte_model, engine_config, LetterEncoder(), OtlpTracer(provider)) as server:
        await server.post("/v1/embeddings", (parent,), input=["ab", "c"])
        await server.post("/v1/embeddings", (parent,), input="longer than the model reads")
    done, failed = exporter.get_finished_spans()
    for span in (done, failed):
        assert span.name == "embeddings bytes"
        assert span.parent is not None
        assert span.parent.span_id == 0xB7AD6B7169203331
        assert (span.attributes or {})["gen_ai.operation.name"] == "embeddings"
    assert (done.attributes or {})["gen_ai.usage.input_tokens"] == 3
    assert (failed.attributes or {})["error.type"] == "context_length_exceeded"


async def test_fewer_dimensions_are_a_unit_vector_again(server: Server) -> None:
    _, body = await server.post("/v1/embeddings", input="abc", dimensions=1)
    assert body["data"][0]["embedding"] == [1]
    status, body = await server.post("/v1/embeddings", input="abc", dimensions=4)
    assert (status, body["error"]["param"]) == (400, "dimensions")


async def test_documents_are_ranked_by_nearness(server: Server) -> None:
    _, body = await server.post("/v1/rerank", query="a", documents=["b", "ab", "a"], top_n=2)
    assert [result["index"] for result in body["results"]] == [2, 1]
    assert body["results"][0]["document"] == {"text": "a"}
    assert body["results"][0]["relevance_score"] == 1
    assert body["usage"]["prompt_tokens"] == 5


async def test_one_text_is_scored_against_many_or_each_against_its_own(server: Server) -> None:
    _, body = await server.post("/v1/score", text_1="a", text_2=["a", "b"])
    assert [item["score"] for item in body["data"]] == [1, 0]
    _, body = await server.post("/v1/score", text_1=["a", "b"], text_2=["b", "b"])
    assert [item["score"] for item in body["data"]] == [0, 1]
    status, body = await server.post("/v1/score", text_1=["a", "b"], text_2="b")
    assert (status, body["error"]["param"]) == (400, "text_1")


async def test_ollamas_shape_has_the_vectors_alone(server: Server) -> None:
    _, body = await server.post("/api/embed", input=["a", "b"])
    assert body["embeddings"] == [[1, 0, 0], [0, 1, 0]]
    assert body["prompt_eval_count"] == 2


async def test_a_text_that_is_too_long_is_refused_and_never_cut(server: Server) -> None:
    status, body = await server.post("/v1/embeddings", input=["a", "a" * 9])
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert (body["error"]["prompt_tokens"], body["error"]["max_model_len"]) == (9, 8)


@pytest.mark.parametrize("wrong", ["", [], [""], ["a", 1], [[]], None])
async def test_a_wrong_input_is_named(server: Server, wrong: object) -> None:
    status, body = await server.post("/v1/embeddings", input=wrong)
    assert status == 400
    assert body["error"]["param"].startswith("input")


async def test_a_model_that_generates_says_that_it_has_none(
    byte_model: Path, engine_config: EngineConfig
) -> None:
    async with serving(byte_model, engine_config, None) as server:
        status, body = await server.post("/v1/embeddings", input="a")
        assert (status, body["error"]["param"]) == (400, "model")
        assert "embedding model" in body["error"]["message"]
        status, body = await server.post("/api/embed", input="a")
        assert status == 400
        assert "embedding model" in body["error"]
