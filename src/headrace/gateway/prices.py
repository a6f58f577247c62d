"""The price of a request: its model's in force, and half of that for what may wait."""

from headrace.gateway.snapshot import ServedModel
from headrace.spec.prices import PriceVersion, price_at
from headrace.spec.priority import Priority

batch_share_percent = 50  # as of OpenAI's batch API


def price_percent(priority: Priority) -> int:
    """At which share of its price book's prices a request is rated."""
    return batch_share_percent if priority is Priority.BATCH else 100


def price_for(
    served: ServedModel, tenant_id: str, priority: Priority, wall_s: float
) -> PriceVersion | None:
    """The tenant's price in force at a time, of the request's class; None if there is none."""
    price = price_at(served.price_books, served.model.name, wall_s, tenant_id)
    percent = price_percent(priority)
    if price is None or percent == 100:
        return price
    return PriceVersion(price.price_book_id, price.price.shared(percent))
