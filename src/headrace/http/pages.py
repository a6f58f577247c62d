"""A list in pages, as OpenAI's clients turn them: `limit`, and `after` an id."""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.http.asgi import Scope

page_items_default = 20
page_items_max = 1_000


class HasId(Protocol):
    """What a page lists."""

    @property
    def id(self) -> str:
        """Its id, by which the next page is asked for."""
        ...


Item = TypeVar("Item", bound=HasId)


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """One page."""

    data: Sequence[Item]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


def page_of(scope: Scope, items: Sequence[Item]) -> Page[Item]:
    """The page that a request asks for; InvalidRequest for a limit that is none."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    text = query.get("limit", [str(page_items_default)])[0]
    if not text.isdecimal() or not 0 < int(text[:6]) <= page_items_max:
        raise InvalidRequest(f"limit is a number from 1 to {page_items_max}.", param="limit")
    start = 0
    if "after" in query:
        ids = [item.id for item in items]
        start = ids.index(query["after"][0]) + 1 if query["after"][0] in ids else len(ids)
    page = items[start : start + int(text)]
    return Page(
        data=page,
        has_more=start + len(page) < len(items),
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
    )
