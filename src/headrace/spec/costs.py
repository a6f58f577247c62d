"""What devices cost to run: an operator's own prices, and what replicas held of them."""

from collections.abc import Iterable, Mapping

import msgspec

from headrace.spec.resource import Resource


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica held of one type of device on one UTC day."""

    day: str  # YYYY-MM-DD
    replica_id: str
    device_type: str
    deployment_id: str
    model: str
    held_s: float  # device-seconds; a socket that n replicas share counts 1/n for each
    busy_s: float  # of those, with a request running


class DevicePrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one device costs an hour, whether it works or not."""

    nanousd_per_hour: int
    watts_busy: float = 0.0  # 0: not known
    watts_idle: float = 0.0

    def __post_init__(self) -> None:
        if self.nanousd_per_hour < 0 or self.watts_busy < 0 or self.watts_idle < 0:
            raise ValueError("a device's price and its watts are 0 or more")


class DevicePrices(Resource, frozen=True, kw_only=True, tag="device_prices"):
    """What devices cost from a moment on; the newest in force counts."""

    kind = "device_prices"
    id_prefix = "dpr"

    effective_time: float
    prices: Mapping[str, DevicePrice]  # by type of device
    nanousd_per_kwh: int = 0  # of energy; 0: not known, or in the prices already


def device_prices_at(books: Iterable[DevicePrices], time_s: float) -> DevicePrices | None:
    """The prices in force at a moment, or None."""
    return max(
        (book for book in books if book.effective_time <= time_s),
        default=None,
        key=lambda book: (book.effective_time, book.create_time, book.id),
    )
