"""The price of a request: its model's in force, and half of that for what may wait."""

import msgspec

from headrace.gateway.snapshot import ServedModel
from headrace.spec.prices import Price, PriceVersion, price_at
from headrace.spec.priority import Priority

batch_share_percent = 50  # as of OpenAI's batch API


def price_for(served: ServedModel, priority: Priority, wall_s: float) -> PriceVersion | None:
    """The price in force at a time, of the request's class; None if the model has none."""
    price = price_at(served.price_books, served.model.name, wall_s)
    if price is None or priority is not Priority.BATCH:
        return price
    return PriceVersion(price.price_book_id, batch_price(price.price))


def batch_price(price: Price) -> Price:
    """Every token class at the batch's share, rounded down."""
    changes = {
        name: amount * batch_share_percent // 100
        for name, amount in msgspec.structs.asdict(price).items()
        if amount is not None
    }
    return msgspec.structs.replace(price, **changes)
