"""What the devices of a period cost, for whom they worked, and what was left over.

cost     = held hours x price an hour + energy
idle     = the part of the cost while no request ran
tenants  = the rest, shared by the tokens that each replica computed for them
margin   = revenue - cost

A day is priced at what was in force when it began. A type of device without a price is counted and
costs nothing, and is named, so that nobody takes the sum for whole.
"""

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.spec.costs import DevicePrices, DeviceUse, device_prices_at

day_length_s = 86_400.0
hour_s = 3600.0
idle = ""  # the tenant of what nobody used


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one deployment, model or tenant cost and brought in."""

    name: str
    device_s: float = 0.0
    busy_s: float = 0.0
    cost_nanousd: int = 0
    idle_nanousd: int = 0  # of the cost
    energy_nanousd: int = 0  # of the cost
    revenue_nanousd: int = 0

    @property
    def margin_nanousd(self) -> int:
        """What is left over."""
        return self.revenue_nanousd - self.cost_nanousd


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a period, three ways, each of which adds up to the total."""

    total: CostLine
    deployments: tuple[CostLine, ...]  # by id
    models: tuple[CostLine, ...]
    tenants: tuple[CostLine, ...]  # by id; the one named "" is what nobody used
    unpriced_device_types: tuple[str, ...]


class _Sum:
    """One line while it is added up."""

    def __init__(self) -> None:
        self.device_s = self.busy_s = 0.0
        self.cost = self.idle = self.energy = 0

    def add(self, use: DeviceUse, cost: int, idle_cost: int, energy: int) -> None:
        self.device_s += use.held_s
        self.busy_s += use.busy_s
        self.cost += cost
        self.idle += idle_cost
        self.energy += energy

    def line(self, name: str, revenue: int) -> CostLine:
        return CostLine(
            name=name,
            device_s=self.device_s,
            busy_s=self.busy_s,
            cost_nanousd=self.cost,
            idle_nanousd=self.idle,
            energy_nanousd=self.energy,
            revenue_nanousd=revenue,
        )


def report_costs(
    uses: Iterable[DeviceUse],
    books: Sequence[DevicePrices],
    shares: Mapping[str, Mapping[str, int]],
    *,
    revenue_by_model: Mapping[str, int],
    revenue_by_tenant: Mapping[str, int],
    revenue_by_replica: Mapping[str, int],
) -> CostReport:
    """Add up costs; `shares` are the tokens computed by replica id and tenant id.

    A deployment's revenue is that of its replicas which held devices; what was answered without any
    of them, as from a cache or by somebody else's engine, is in the models' and tenants' alone."""
    total = _Sum()
    by_deployment: dict[str, _Sum] = defaultdict(_Sum)
    by_model: dict[str, _Sum] = defaultdict(_Sum)
    by_tenant: dict[str, int] = defaultdict(int)
    unpriced = set()
    deployment_of: dict[str, str] = {}
    for use in uses:
        deployment_of[use.replica_id] = use.deployment_id
        cost, idle_cost, energy = cost_of(use, book_of(use, books))
        if cost is None:
            unpriced.add(use.device_type)
            cost = 0
        for each in (total, by_deployment[use.deployment_id], by_model[use.model]):
            each.add(use, cost, idle_cost, energy)
        by_tenant[idle] += idle_cost
        for tenant_id, part in shared_out(cost - idle_cost, shares.get(use.replica_id, {})).items():
            by_tenant[tenant_id] += part
    revenue_by_deployment: dict[str, int] = defaultdict(int)
    for replica_id, revenue in revenue_by_replica.items():
        if replica_id in deployment_of:
            revenue_by_deployment[deployment_of[replica_id]] += revenue
    for model in revenue_by_model:
        by_model[model]  # one that ran on somebody else's devices
    for tenant_id in revenue_by_tenant:
        by_tenant[tenant_id] += 0
    return CostReport(
        total=total.line("all", sum(revenue_by_model.values())),
        deployments=tuple(
            found.line(name, revenue_by_deployment[name])
            for name, found in sorted(by_deployment.items())
        ),
        models=tuple(
            found.line(name, revenue_by_model.get(name, 0))
            for name, found in sorted(by_model.items())
        ),
        tenants=tuple(
            CostLine(name=name, cost_nanousd=cost, revenue_nanousd=revenue_by_tenant.get(name, 0))
            for name, cost in sorted(by_tenant.items())
        ),
        unpriced_device_types=tuple(sorted(unpriced)),
    )


def book_of(use: DeviceUse, books: Sequence[DevicePrices]) -> DevicePrices | None:
    """The prices of a day's use: those in force when it began, or where these lack its type, when
    it ended; so a type's first price counts at once, and each later one from the next day on."""
    start_s = day_start_s(use.day)
    book = device_prices_at(books, start_s)
    if book is None or use.device_type not in book.prices:
        return device_prices_at(books, start_s + day_length_s - 1.0)
    return book


def cost_of(use: DeviceUse, book: DevicePrices | None) -> tuple[int | None, int, int]:
    """The cost, its idle part and its energy in nano-dollars; no cost where there is no price."""
    price = None if book is None else book.prices.get(use.device_type)
    if book is None or price is None:
        return None, 0, 0
    idle_s = use.held_s - use.busy_s
    held = round(use.held_s / hour_s * price.nanousd_per_hour)
    idle_held = round(idle_s / hour_s * price.nanousd_per_hour)
    kwh = book.nanousd_per_kwh / hour_s / 1000.0
    idle_energy = round(idle_s * price.watts_idle * kwh)
    energy = idle_energy + round(use.busy_s * price.watts_busy * kwh)
    return held + energy, idle_held + idle_energy, energy


def shared_out(amount_nanousd: int, tokens: Mapping[str, int]) -> dict[str, int]:
    """An amount by shares of tokens, to the last nano-dollar; idle where there are none."""
    whole = sum(tokens.values())
    if whole == 0:
        return {idle: amount_nanousd}
    parts = {}
    given = seen = 0
    for name, count in sorted(tokens.items()):
        seen += count
        upto = amount_nanousd * seen // whole
        parts[name] = upto - given
        given = upto
    return parts


def day_start_s(day: str) -> float:
    """When a UTC day begins, in seconds since the epoch."""
    start = datetime.datetime.combine(datetime.date.fromisoformat(day), datetime.time())
    return start.replace(tzinfo=datetime.UTC).timestamp()
