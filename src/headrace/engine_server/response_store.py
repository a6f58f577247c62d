"""Responses that are kept: what was answered, and the items that a later request builds on.

Bounded in number and bytes; the oldest that nobody asked for lately goes first.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.base.errors import NotFound
from headrace.protocol.responses_api import Item, items_of_output

responses_max = 1_000
bytes_max = 64 * 1024 * 1024

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response."""

    body: bytes  # the response as JSON
    items: tuple[Item, ...]  # all that was said up to it, its own output not included
    size_bytes: int

    @property
    def conversation(self) -> list[Item]:
        """What a request that follows it begins with."""
        output = msgspec.json.decode(self.body)["output"]
        return [*self.items, *items_of_output(output)]


class ResponseStore:
    """Responses by id."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size_bytes = 0

    def put(self, response: Mapping[str, object], items: list[Item]) -> None:
        """Keep a response, or its newer state; one that is larger than all the room is not kept."""
        response_id = str(response["id"])
        self.discard(response_id)
        body = _encode(response)
        size_bytes = len(body) + len(_encode(items))
        if size_bytes > bytes_max:
            return
        self._stored[response_id] = StoredResponse(body, tuple(items), size_bytes)
        self._size_bytes += size_bytes
        while len(self._stored) > responses_max or self._size_bytes > bytes_max:
            _, oldest = self._stored.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    def get(self, response_id: str) -> StoredResponse:
        """A response; NotFound if it is not, or no longer, kept."""
        stored = self._stored.get(response_id)
        if stored is None:
            raise NotFound(
                f"There is no response {response_id!r} here; it was not stored, or its place was "
                "needed since."
            )
        self._stored.move_to_end(response_id)
        return stored

    def discard(self, response_id: str) -> None:
        """Forget a response, if it is there."""
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._size_bytes -= stored.size_bytes
