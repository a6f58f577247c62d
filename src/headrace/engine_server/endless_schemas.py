"""Finds JSON schemas that no finite value can follow, because they always contain themselves.

A grammar of such a schema compiles, and its answer goes on until something else ends it. The finite
ones are the least set that has a definition in it once all is in it that this cannot do without.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Any  # of JSON: a mapping, or a boolean
depth_max = 64  # deeper nesting is taken as finite
definitions_max = 256  # more are taken as finite: each is looked at as often as there are some


def is_endless(schema: Schema) -> bool:
    """Whether every value that follows the schema would have to be infinite.

    False where that is not plain to see; references out of the schema are left alone."""
    targets = {ref: target_of(schema, ref) for ref in set(references(schema))}
    if not targets or len(targets) > definitions_max:
        return False
    finite: set[str] = set()
    while True:
        more = {
            ref
            for ref, target in targets.items()
            if ref not in finite and (target is None or ends(target, finite))
        }
        if not more:
            return not ends(schema, finite)
        finite |= more


def references(schema: Schema, depth: int = 0) -> Iterator[str]:
    """Every `$ref` in it."""
    if depth > depth_max:
        return
    if isinstance(schema, Mapping):
        ref = schema.get("$ref")
        if isinstance(ref, str):
            yield ref
        for value in schema.values():
            yield from references(value, depth + 1)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value, depth + 1)


def target_of(schema: Schema, ref: str) -> Schema | None:
    """What a reference such as `#/$defs/node` means; None if it is not in the schema."""
    if ref == "#":
        return schema
    if not ref.startswith("#/"):
        return None
    for part in ref[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, Mapping) or name not in schema:
            return None
        schema = schema[name]
    return schema


def ends(schema: Schema, finite: set[str], depth: int = 0) -> bool:
    """Whether a finite value can follow it, if the definitions in `finite` have one."""
    if not isinstance(schema, Mapping) or depth > depth_max:
        return True
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref not in finite:
        return False
    depth += 1
    parts = _list(schema.get("allOf"))
    if schema.get("type") == "object":
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            parts += [
                properties[name]
                for name in _list(schema.get("required"))
                if isinstance(name, str) and name in properties
            ]
    least = schema.get("minItems")
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        first = _list(schema.get("prefixItems"))[:least]
        parts += first if len(first) == least else [*first, schema.get("items")]
    choices = [_list(schema.get(word)) for word in ("anyOf", "oneOf")]
    return all(ends(part, finite, depth) for part in parts) and all(
        not choice or any(ends(each, finite, depth) for each in choice) for choice in choices
    )


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else []
