"""Policies as the API carries them: the same structs that the store keeps, checked as they come."""

from typing import TypeVar

import msgspec
from pydantic import JsonValue

from headrace.base.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)

Policy = dict[str, JsonValue]  # of a struct whose fields are checked by `read`


def read(value: Policy, kind: type[T], param: str) -> T:
    """A struct from JSON; InvalidRequest names the field that is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def merged(present: T, changes: Policy | None, param: str) -> T:
    """The struct with the fields that are named; null gives a field its default back."""
    if not changes:
        return present
    fields: Policy = msgspec.json.decode(msgspec.json.encode(present))
    fields |= changes
    kept: Policy = {name: value for name, value in fields.items() if value is not None}
    return read(kept, type(present), param)


def shown(value: msgspec.Struct | None) -> Policy | None:
    """A struct as JSON."""
    return None if value is None else msgspec.json.decode(msgspec.json.encode(value))
