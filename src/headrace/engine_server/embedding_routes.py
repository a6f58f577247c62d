"""Embeddings and what is made of them: rankings and scores, by the cosine of the texts' vectors.

Whether there is an encoder is the model's: a generative model has none, and says so with a 400.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.base.ids import new_id
from headrace.engine_server.generating import Generating
from headrace.engine_server.ollama_routes import ollama_error
from headrace.engine_server.routes import Call, Route
from headrace.engine_server.traces import embedding_span
from headrace.http.asgi import send_json
from headrace.protocol.embeddings import (
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
    embeddings_body,
    parse_embeddings_request,
    parse_rerank_request,
    parse_score_request,
    rerank_body,
    score_body,
    texts_of,
)
from headrace.protocol.ollama import OllamaEmbedRequest, parse_ollama_embed, plain_name

Vector = Sequence[float]


class Encoder(Protocol):
    """A model that makes one vector of a text's tokens."""

    @property
    def context_length(self) -> int:
        """Tokens of one text."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """A text's tokens, with those that the model wants around it."""
        ...

    async def embed(self, token_ids: list[list[int]]) -> Sequence[Vector]:
        """The unit vector of each text."""
        ...


class EmbeddingRoutes:
    """`/v1/embeddings`, `/v1/rerank`, `/v1/score` and Ollama's `/api/embed`."""

    def __init__(self, generating: Generating, encoder: Encoder | None) -> None:
        self._generating = generating
        self._encoder = encoder

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route(
                "POST",
                "/v1/embeddings",
                self._embeddings,
                summary="OpenAI's embeddings, of models that have them",
                request=EmbeddingsRequest,
            ),
            Route(
                "POST",
                "/v1/rerank",
                self._rerank,
                summary="Documents by how near they are to a query",
                request=RerankRequest,
            ),
            Route(
                "POST",
                "/v1/score",
                self._score,
                summary="How near texts are to each other",
                request=ScoreRequest,
            ),
            Route(
                "POST",
                "/api/embed",
                self._ollama_embed,
                error_body=ollama_error,
                summary="Ollama's embeddings",
                request=OllamaEmbedRequest,
            ),
        ]

    async def _embeddings(self, call: Call) -> None:
        request = parse_embeddings_request(await call.body())
        vectors, count = await self._embed(call, request.model, request.inputs, "input")
        cut = [shortened(vector, request.dimensions) for vector in vectors]
        form = request.encoding_format
        await send_json(
            call.send, 200, embeddings_body(request.model, cut, count, encoding_format=form)
        )

    async def _rerank(self, call: Call) -> None:
        request = parse_rerank_request(await call.body())
        (query, *documents), count = await self._embed(
            call, request.model, [request.query, *request.documents], "documents"
        )
        scores = [dot(query, document) for document in documents]
        answer_id = new_id("rerank", self._generating.service.clock)
        await send_json(call.send, 200, rerank_body(request, answer_id, scores, count))

    async def _score(self, call: Call) -> None:
        request = parse_score_request(await call.body())
        first, second = texts_of(request.text_1), texts_of(request.text_2)
        vectors, count = await self._embed(call, request.model, [*first, *second], "text_2")
        ones, others = vectors[: len(first)], vectors[len(first) :]
        if len(ones) == 1:
            ones = [*ones] * len(others)
        scores = [dot(one, other) for one, other in zip(ones, others, strict=True)]
        clock = self._generating.service.clock
        body = score_body(request.model, new_id("score", clock), int(clock.wall_s()), scores, count)
        await send_json(call.send, 200, body)

    async def _ollama_embed(self, call: Call) -> None:
        request = parse_ollama_embed(await call.body())
        texts = texts_of(request.input)
        vectors, count = await self._embed(call, plain_name(request.model), texts, "input")
        cut = [shortened(vector, request.dimensions) for vector in vectors]
        body = {"model": request.model, "embeddings": cut, "prompt_eval_count": count}
        await send_json(call.send, 200, msgspec.json.encode(body))

    async def _embed(
        self, call: Call, model: str, inputs: Sequence[str | list[int]], param: str
    ) -> tuple[list[Vector], int]:
        """The inputs' vectors, and the tokens of them all."""
        trace = self._generating.begin_trace("embeddings", call.scope)
        if trace is None:
            return await self._vectors(model, inputs, param)
        with embedding_span(trace, self._generating.service.config.served_name) as span:
            vectors, span.input_tokens = await self._vectors(model, inputs, param)
        return vectors, span.input_tokens

    async def _vectors(
        self, model: str, inputs: Sequence[str | list[int]], param: str
    ) -> tuple[list[Vector], int]:
        self._generating.check_accepting()
        self._generating.service.check_name(model)
        encoder = self._encoder or self._generating.service.encoder()
        if encoder is None:
            raise InvalidRequest(
                f"The model {model!r} generates text and has no embeddings; serve an embedding "
                "model for them.",
                param="model",
            )
        token_ids = await asyncio.to_thread(tokens_of, encoder, inputs, param)
        vectors = await encoder.embed(token_ids)
        return list(vectors), sum(map(len, token_ids))


def tokens_of(encoder: Encoder, inputs: Sequence[str | list[int]], param: str) -> list[list[int]]:
    """Each input's tokens; ContextLengthExceeded if one has too many, nothing is ever cut."""
    made: list[list[int]] = []
    for item in inputs:
        token_ids = encoder.encode_text(item) if isinstance(item, str) else item
        if len(token_ids) > encoder.context_length:
            raise ContextLengthExceeded(
                f"A text has {len(token_ids)} tokens and this model takes "
                f"{encoder.context_length}; cut it into several.",
                param=param,
                prompt_tokens=len(token_ids),
                max_model_len=encoder.context_length,
            )
        made.append(token_ids)
    return made


def shortened(vector: Vector, dimensions: int | None) -> Vector:
    """The vector's first dimensions, of length one again; InvalidRequest if it has fewer."""
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(
            f"This model's vectors have {len(vector)} dimensions, not {dimensions}.",
            param="dimensions",
        )
    first = vector[:dimensions]
    length = math.sqrt(dot(first, first)) or 1.0
    return [value / length for value in first]


def dot(one: Vector, other: Vector) -> float:
    """The cosine of two unit vectors."""
    return sum(a * b for a, b in zip(one, other, strict=True))
