from headrace.engine_server.openapi import openapi_document
from headrace.engine_server.reference_page import all_routes


def test_every_route_is_described_and_every_reference_resolves() -> None:
    document = openapi_document(all_routes(), "1")
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert described == {(route.method, route.path.replace("...}", "}")) for route in all_routes()}

    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [found for item in value.values() for found in references(item)]
        if isinstance(value, list):
            return [found for item in value for found in references(item)]
        return []

    schemas = document["components"]["schemas"]
    names = {reference.rpartition("/")[2] for reference in references(document)}
    assert names <= set(schemas)


def test_bodies_have_the_bounds_of_their_types() -> None:
    document = openapi_document(all_routes(), "1")
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    properties = document["components"]["schemas"]["ChatRequest"]["properties"]
    (number, _) = properties["temperature"]["anyOf"]
    assert (number["minimum"], number["maximum"]) == (0, 100)


def test_only_public_routes_ask_for_no_key() -> None:
    document = openapi_document(all_routes(), "1")
    public = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if "security" not in operation
    }
    assert public == {"/livez", "/readyz", "/health", "/api/version"}
