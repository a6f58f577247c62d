"""The key-value section of a GGUF file as Python values, each checked before it is built."""

import struct
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.weights.gguf_cursor import GgufCursor

MetadataValue: TypeAlias = (
    "str | int | float | bool | list[str] | NDArray[np.generic] | list[MetadataValue]"
)

entries_max = 65_536
key_bytes_max = 65_535  # the format's own limit
nesting_max = 4
entry_bytes_min = 8 + 1 + 4 + 1  # key length, key, type, the smallest value

type_bool, type_string, type_array = 7, 8, 9
scalar_layouts: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


def read_metadata(cursor: GgufCursor, count: int) -> dict[str, MetadataValue]:
    """Read `count` entries; arrays of numbers stay in the file as NumPy views."""
    if count > entries_max:
        cursor.fail("metadata count", f"{count} is more than the {entries_max} allowed")
    cursor.spend_objects(count, smallest_bytes=entry_bytes_min, field="metadata count")
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        key = cursor.take_string(f"key of metadata entry {index}", key_bytes_max)
        if not key:
            cursor.fail(f"key of metadata entry {index}", "is empty")
        if key in metadata:
            cursor.fail(key, "stands twice in the metadata")
        value_type = cursor.take_u32(key)
        metadata[key] = _read_value(cursor, value_type, key, nesting=0)
    return metadata


def _read_value(cursor: GgufCursor, value_type: int, key: str, *, nesting: int) -> MetadataValue:
    if value_type == type_string:
        return cursor.take_string(key)
    if value_type == type_array:
        return _read_array(cursor, key, nesting=nesting)
    if value_type == type_bool:
        return _as_bool(cursor, int(cursor.take(scalar_layouts[0], key)), key)
    layout = scalar_layouts.get(value_type)
    if layout is None:
        cursor.fail(key, f"unknown value type {value_type}")
    return cursor.take(layout, key)


def _read_array(cursor: GgufCursor, key: str, *, nesting: int) -> MetadataValue:
    if nesting == nesting_max:
        cursor.fail(key, f"arrays are nested more than {nesting_max} deep")
    element_type = cursor.take_u32(key)
    count = cursor.take_u64(key)
    if element_type == type_string:
        return cursor.take_strings(count, key)
    if element_type == type_array:
        cursor.spend_objects(count, smallest_bytes=12, field=key)
        return [_read_array(cursor, key, nesting=nesting + 1) for _ in range(count)]
    if element_type == type_bool:
        flags = cursor.take_numbers(count, np.dtype(np.uint8), key)
        if count and int(flags.max()) > 1:
            cursor.fail(key, "a boolean is neither 0 nor 1")
        return flags.view(np.bool_)
    layout = scalar_layouts.get(element_type)
    if layout is None:
        cursor.fail(key, f"unknown element type {element_type}")
    return cursor.take_numbers(count, np.dtype(layout.format), key)


def _as_bool(cursor: GgufCursor, value: int, key: str) -> bool:
    if value > 1:
        cursor.fail(key, f"a boolean is {value}, neither 0 nor 1")
    return value == 1
