"""The price of a request: its model's in force, at the share of its priority and region."""

from typing import NamedTuple

from headrace.gateway.snapshot import ServedModel
from headrace.spec.prices import PriceVersion, book_at, default_percent
from headrace.spec.priority import Priority


class Quote(NamedTuple):
    """What a request is rated by."""

    model_name: str  # whose price it is, and under which the request is booked
    price: PriceVersion | None  # at its share already; None: the model has none
    percent: int  # the share of the price book's prices


def quote_for(
    served: ServedModel, tenant_id: str, priority: Priority, region: str, wall_s: float
) -> Quote:
    """The tenant's price in force at a time, for this priority and region.

    An adapter is priced under its own name where that has a price, and else as its model."""
    name, book = served.name, book_at(served.price_books, served.name, wall_s, tenant_id)
    if book is None and served.adapter:
        name = served.model.name
        book = book_at(served.price_books, name, wall_s, tenant_id)
    if book is None:
        return Quote(name, None, default_percent(priority))
    percent = book.percent_of(priority, region)
    price = book.prices[name]
    shared = price if percent == 100 else price.shared(percent)
    return Quote(name, PriceVersion(book.id, shared), percent)
