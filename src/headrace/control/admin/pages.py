"""Lists in pages: ids sort by creation time, so a page goes on after the last id before it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel

from headrace.spec.resource import Resource

page_items_max = 500  # bounds one answer to a few hundred kilobytes
page_items_default = 100

R = TypeVar("R", bound=Resource)
View = TypeVar("View", bound=BaseModel)

Limit = Annotated[int, Query(ge=1, le=page_items_max, description="How many items at most.")]
After = Annotated[str, Query(max_length=64, description="`next` of the page before.")]


class Page(BaseModel, Generic[View]):
    """A part of a list; `next` is the `after` of the following part, or null at the end."""

    items: list[View]
    next: str | None = None


def page_of(
    resources: Sequence[R], after: str, limit: int, view: Callable[[R], View]
) -> Page[View]:
    """The page of `resources`, which are in the order of their ids, that follows id `after`."""
    rest = [resource for resource in resources if resource.id > after]
    part = rest[:limit]
    return Page(items=[view(r) for r in part], next=part[-1].id if len(rest) > limit else None)
