"""The common shape of everything the store keeps."""

from typing import ClassVar

import msgspec


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable value with an identity; a change is a new value of a higher version."""

    kind: ClassVar[str]
    id_prefix: ClassVar[str]

    id: str
    name: str  # unique within (kind, parent_id)
    parent_id: str = ""  # the id of the resource that this one belongs to; empty at the top
    create_time: float  # seconds since the Unix epoch
    version: int = 0  # set by the store: 1 when created, +1 a change
