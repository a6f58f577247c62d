"""Embeddings, scores and rankings: what clients send, and what they get."""

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.base.errors import InvalidRequest
from headrace.protocol.parsing import decode_request
from headrace.protocol.requests import TokenId, prompt_tokens_max

texts_max = 2048  # of one request

Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1, max_length=texts_max)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=prompt_tokens_max)]
ModelName = Annotated[str, Meta(min_length=1, max_length=512)]


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings: texts, or token ids."""

    model: ModelName
    input: (
        Text
        | Annotated[
            list[str | TokenId | TokenIds], Meta(min_length=1, max_length=prompt_tokens_max)
        ]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None  # the first ones, made a unit again
    user: str | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """What is to be embedded, each as text or as token ids."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [[item for item in self.input if isinstance(item, int)]]
        return [item for item in self.input if not isinstance(item, int)]


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/rerank, in the shape of Jina's and Cohere's APIs."""

    model: ModelName
    query: Text
    documents: Texts
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None  # unless false


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/score: how near texts are, one by one, or one to all."""

    model: ModelName
    text_1: Text | Texts
    text_2: Text | Texts


_embeddings = msgspec.json.Decoder(EmbeddingsRequest)
_rerank = msgspec.json.Decoder(RerankRequest)
_score = msgspec.json.Decoder(ScoreRequest)


def parse_embeddings_request(body: bytes) -> EmbeddingsRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    request = decode_request(body, _embeddings, EmbeddingsRequest, {})
    if isinstance(request.input, list):
        if len({type(item) for item in request.input}) > 1:
            raise InvalidRequest("The inputs are texts or token ids; not a mix.", param="input")
        if any(item == "" for item in request.input):
            raise InvalidRequest("An input is empty; send some text.", param="input")
        if len(request.inputs) > texts_max:
            raise InvalidRequest(
                f"One request may have {texts_max} inputs, not {len(request.inputs)}.",
                param="input",
            )
    return request


def parse_rerank_request(body: bytes) -> RerankRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    return decode_request(body, _rerank, RerankRequest, {"rank_fields": ()})


def parse_score_request(body: bytes) -> ScoreRequest:
    """The request in `body`; InvalidRequest names the first field that is wrong."""
    request = decode_request(body, _score, ScoreRequest, {})
    first, second = texts_of(request.text_1), texts_of(request.text_2)
    if len(first) not in (1, len(second)):
        raise InvalidRequest(
            f"text_1 has {len(first)} texts and text_2 {len(second)}; send one and many, or as "
            "many of each.",
            param="text_1",
        )
    return request


def texts_of(text: str | list[str]) -> list[str]:
    """One text or several as a list."""
    return [text] if isinstance(text, str) else text


def embeddings_body(
    model: str,
    vectors: Sequence[Sequence[float]],
    prompt_tokens: int,
    *,
    encoding_format: str | None = None,
) -> bytes:
    """The answer of POST /v1/embeddings."""
    listed = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _packed(vector) if encoding_format == "base64" else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    body = {"object": "list", "data": listed, "model": model, "usage": usage}
    return msgspec.json.encode(body)


def rerank_body(
    request: RerankRequest, answer_id: str, scores: Sequence[float], prompt_tokens: int
) -> bytes:
    """The answer of POST /v1/rerank: the best documents first."""
    best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
    shows = request.return_documents is not False
    results = [
        {
            "index": index,
            "relevance_score": scores[index],
            **({"document": {"text": request.documents[index]}} if shows else {}),
        }
        for index in best_first[: request.top_n]
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    body = {"id": answer_id, "model": request.model, "results": results, "usage": usage}
    return msgspec.json.encode(body)


def score_body(
    model: str, answer_id: str, created_s: int, scores: Sequence[float], prompt_tokens: int
) -> bytes:
    """The answer of POST /v1/score: one score for each pair."""
    data = [
        {"index": index, "object": "score", "score": score} for index, score in enumerate(scores)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    body = {
        "id": answer_id,
        "object": "list",
        "created": created_s,
        "model": model,
        "data": data,
        "usage": usage,
    }
    return msgspec.json.encode(body)


def _packed(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats in base64, as OpenAI's clients ask for by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
