"""The OpenAPI document of the gateway, made from its routes and from the types that parse requests.

What answers look like is told by the references of the APIs that they belong to: OpenAI's and
Anthropic's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.gateway.batch_values import BatchRequest
from headrace.gateway.media_api import MediaFields, image_paths, sound_paths
from headrace.gateway.route_table import Access, Route
from headrace.protocol.anthropic import CountRequest, MessagesRequest
from headrace.protocol.embeddings import EmbeddingsRequest, RerankRequest, ScoreRequest
from headrace.protocol.requests import ChatRequest, CompletionRequest
from headrace.protocol.responses_api import ResponsesRequest
from headrace.protocol.tokens import DetokenizeRequest, TokenizeRequest

Fields = dict[str, Any]
RequestType = type[msgspec.Struct]


class Described(NamedTuple):
    """What a route is for, and what its body is parsed to."""

    summary: str
    request: RequestType | None = None


described: Mapping[tuple[str, str], Described] = {
    ("POST", "/v1/chat/completions"): Described("OpenAI's chat", ChatRequest),
    ("POST", "/v1/completions"): Described("OpenAI's text completion", CompletionRequest),
    ("POST", "/v1/responses"): Described("OpenAI's Responses API", ResponsesRequest),
    ("GET", "/v1/responses/{response}"): Described("A kept response"),
    ("DELETE", "/v1/responses/{response}"): Described("Forget a kept response"),
    ("GET", "/v1/responses/{response}/input_items"): Described("All that a response answers"),
    ("POST", "/v1/messages"): Described("Anthropic's Messages API", MessagesRequest),
    ("POST", "/v1/messages/count_tokens"): Described("The tokens of a message", CountRequest),
    ("POST", "/v1/embeddings"): Described("Vectors of texts", EmbeddingsRequest),
    ("POST", "/v1/rerank"): Described("Documents by how they answer a query", RerankRequest),
    ("POST", "/v1/score"): Described("How alike texts are", ScoreRequest),
    ("POST", "/v1/tokenize"): Described("The tokens of a text", TokenizeRequest),
    ("POST", "/v1/detokenize"): Described("The text of tokens", DetokenizeRequest),
    ("POST", "/tokenize"): Described("The same as /v1/tokenize", TokenizeRequest),
    ("POST", "/detokenize"): Described("The same as /v1/detokenize", DetokenizeRequest),
    ("POST", "/v1/audio/speech"): Described("A text read aloud", MediaFields),
    ("POST", "/v1/audio/transcriptions"): Described("A sound written down"),
    ("POST", "/v1/audio/translations"): Described("A sound written down in English"),
    ("POST", "/v1/images/generations"): Described("Images of a text", MediaFields),
    ("POST", "/v1/images/edits"): Described("Images changed by a text"),
    ("POST", "/v1/images/variations"): Described("Images like another"),
    ("POST", "/v1/files"): Described("Keep a file"),
    ("GET", "/v1/files"): Described("The kept files"),
    ("GET", "/v1/files/{file}"): Described("A kept file"),
    ("DELETE", "/v1/files/{file}"): Described("Forget a file"),
    ("GET", "/v1/files/{file}/content"): Described("A kept file's bytes"),
    ("POST", "/v1/batches"): Described("Many requests at once, at half the price", BatchRequest),
    ("GET", "/v1/batches"): Described("The batches"),
    ("GET", "/v1/batches/{batch}"): Described("How far a batch is"),
    ("POST", "/v1/batches/{batch}/cancel"): Described("Give a batch up"),
    ("GET", "/v1/models"): Described("The models of the key"),
    ("GET", "/v1/models/{model}"): Described("One model"),
    ("GET", "/openapi.json"): Described("This document"),
    ("GET", "/livez"): Described("Whether it runs"),
    ("GET", "/readyz"): Described("Whether it serves"),
    ("GET", "/health"): Described("The same, briefly"),
    ("GET", "/metrics"): Described("Prometheus metrics"),
}
form_paths = frozenset((*sound_paths, *image_paths, "/v1/files"))
binary = {"type": "string", "format": "binary"}
form_schema: Fields = {
    "type": "object",
    "properties": {"model": {"type": "string"}, "purpose": {"type": "string"}, "file": binary},
    "required": ["file"],
}
reference = "#/components/schemas/{name}"
error_name = "Error"
security_name = "key"
# What any route may refuse a request with.
refusals = {"4XX": "The caller is wrong; the error says how.", "503": "Not now; try again later."}


def openapi_document(routes: Iterable[Route], version: str) -> Fields:
    """The document of these routes, but for the platform's own."""
    told = [route for route in routes if route.access is not Access.PLATFORM]
    requests = {key: each.request for key, each in described.items() if each.request is not None}
    types = list(dict.fromkeys(requests.values()))
    schemas, components = msgspec.json.schema_components(types, ref_template=reference)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Fields] = {}
    for route in told:
        request = requests.get((route.method, route.name))
        schema = None if request is None else by_type[request]
        paths.setdefault(route.name, {})[route.method.lower()] = operation_of(route, schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "headrace gateway", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**components, error_name: error_schema},
            "securitySchemes": {security_name: {"type": "http", "scheme": "bearer"}},
        },
    }


def operation_of(route: Route, schema: Fields | None) -> Fields:
    """One route."""
    found = described.get((route.method, route.name))
    operation: Fields = {
        "operationId": f"{route.method} {route.name}",
        "summary": "" if found is None else found.summary,
        "parameters": parameters_of(route),
        "responses": responses(),
    }
    if route.method == "POST" and route.name in form_paths:
        content: Fields = {"multipart/form-data": {"schema": form_schema}}
        operation["requestBody"] = {"required": True, "content": content}
    elif schema is not None:
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.access is not Access.PUBLIC:
        operation["security"] = [{security_name: []}]
    return operation


def parameters_of(route: Route) -> list[Fields]:
    """The variable of a path, and the headers that say how a request is to be answered."""
    _, brace, rest = route.name.partition("{")
    if not brace:
        return []
    name = rest.partition("}")[0]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]


def responses() -> Fields:
    """Each route's answers."""
    error = {"application/json": {"schema": {"$ref": reference.format(name=error_name)}}}
    refused = {status: {"description": text, "content": error} for status, text in refusals.items()}
    return {"200": {"description": "The answer."}, **refused}


error_schema: Fields = {"type": "object", "properties": {"error": {}}, "required": ["error"]}
