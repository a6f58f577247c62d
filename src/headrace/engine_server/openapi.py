"""The OpenAPI document of the engine server, made from the types that parse its requests."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.engine_server.routes import Access, Route

Fields = dict[str, Any]

reference = "#/components/schemas/{name}"
error_name = "Error"
security_name = "key"
# What any route may refuse a request with.
refusals = {"4XX": "The caller is wrong; the error says how.", "503": "Not now; try again later."}


def openapi_document(routes: Sequence[Route], version: str) -> Fields:
    """The document of these routes."""
    types = [route.request for route in routes if route.request is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=reference)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Fields] = {}
    for route in routes:
        path = route.path.replace("...}", "}")
        schema = by_type.get(route.request) if route.request is not None else None
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema)
    return {
        "openapi": "3.1.0",
        "info": {"title": "headrace serve", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**components, error_name: _error_schema()},
            "securitySchemes": {security_name: {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schema: Fields | None) -> Fields:
    operation: Fields = {
        "operationId": f"{route.method} {route.path}",
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.variables
        ],
        "responses": _responses(),
    }
    if schema is not None:
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.access is not Access.PUBLIC:
        operation["security"] = [{security_name: []}]
    return operation


def _responses() -> Fields:
    """Each route's answers; what is in them is told by the reference of the API it belongs to."""
    error = {"application/json": {"schema": {"$ref": reference.format(name=error_name)}}}
    refused = {status: {"description": text, "content": error} for status, text in refusals.items()}
    return {"200": {"description": "The answer."}, **refused}


def _error_schema() -> Fields:
    """An error; Anthropic's and Ollama's routes write it as their clients expect it."""
    return {"type": "object", "properties": {"error": {}}, "required": ["error"]}
