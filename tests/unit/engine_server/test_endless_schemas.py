"""A schema that always contains itself is found, and no other one."""

from typing import Any

import pytest

from headrace.engine_server.endless_schemas import is_endless


def node(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"], **more}


endless: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "a property": node(),
    "each other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "all of": {"allOf": [{"type": "object"}, {"$ref": "#"}]},
    "either way": {"anyOf": [{"$ref": "#"}, node()]},
    "an array with an item": {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    "a first item": {"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]},
    "an escaped name": {"$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}, "$ref": "#/$defs/a~1b"},
}
finite: dict[str, Any] = {
    "no reference": {"type": "object", "properties": {"a": {}}, "required": ["a"]},
    "optional": node(required=[]),
    "or null": node(properties={"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}),
    "an array without items": node(
        properties={"next": {"type": "array", "items": {"$ref": "#"}}},
    ),
    "other types are allowed": node(type=["object", "null"]),
    "unused": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": "integer"},
    "elsewhere": {"$ref": "https://example.com/schema"},
    "nowhere": {"$ref": "#/$defs/none"},
    "a boolean": True,
    "deep": {"type": "array", "items": {"type": "array", "items": {"$ref": "#"}}},
}


@pytest.mark.parametrize("name", endless)
def test_what_never_ends_is_found(name: str) -> None:
    assert is_endless(endless[name])


@pytest.mark.parametrize("name", finite)
def test_what_can_end_is_left_alone(name: str) -> None:
    assert not is_endless(finite[name])


def test_nesting_and_numbers_are_bounded() -> None:
    deep: dict[str, Any] = {"$ref": "#"}
    for _ in range(5_000):
        deep = {"allOf": [deep]}
    assert not is_endless(deep)
    assert not is_endless({"allOf": [{"$ref": f"#/$defs/{n}"} for n in range(5_000)]})
