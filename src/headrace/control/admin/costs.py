"""Routes for what devices cost, and what is left over: by deployment, model and tenant."""

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StringConstraints

from headrace.base.errors import InvalidRequest
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.billing.costs import CostLine, idle, report_costs
from headrace.control.admin.context import Context
from headrace.control.admin.invoice_values import Month, PeriodFields, bounds_of
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.values import (
    Dollars,
    Moment,
    Money,
    RequestBody,
    moment,
    wall_s_of,
)
from headrace.spec.costs import DevicePrice, DevicePrices
from headrace.spec.deployments import Deployment
from headrace.spec.tenancy import Tenant

router = APIRouter()

DeviceType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w .+-]*$", max_length=64)]
Watts = Annotated[float, Field(ge=0, le=1_000_000)]


class DevicePriceFields(RequestBody):
    """What one device costs an hour, whether it works or not."""

    usd_per_hour: Dollars
    watts_busy: Watts = 0.0
    watts_idle: Watts = 0.0

    def price(self) -> DevicePrice:
        """The value that is kept; InvalidRequest if it is negative."""
        try:
            return DevicePrice(
                nanousd_per_hour=parse_usd(self.usd_per_hour),
                watts_busy=self.watts_busy,
                watts_idle=self.watts_idle,
            )
        except ValueError as error:
            raise InvalidRequest(str(error), param="prices") from None


class DevicePricesCreate(RequestBody):
    """What devices cost from a moment on."""

    effective_time: Moment | None = None  # None: now
    prices: Annotated[dict[DeviceType, DevicePriceFields], Field(min_length=1, max_length=1000)]
    usd_per_kwh: Dollars = "0"


class DevicePriceView(BaseModel):
    """What one device costs."""

    per_hour: Money
    watts_busy: float
    watts_idle: float


class DevicePricesView(BaseModel):
    """What devices cost from a moment on."""

    id: str
    effective_time: datetime.datetime
    prices: dict[str, DevicePriceView]
    per_kwh: Money


class CostLineView(BaseModel):
    """What something cost and brought in."""

    id: str | None  # null where it has none
    name: str
    device_hours: float
    busy_share: float | None  # of the device-hours; null: none were held
    cost: Money
    idle_cost: Money  # of the cost
    energy_cost: Money  # of the cost
    revenue: Money
    margin: Money


class Costs(BaseModel):
    """The costs of a period; each of the lists adds up to the total."""

    first_day: datetime.date
    last_day: datetime.date
    total: CostLineView
    deployments: list[CostLineView]
    models: list[CostLineView]
    tenants: list[CostLineView]  # the one without an id is what nobody used
    unpriced_device_types: list[str]  # that were held and cost nothing here


@router.post("/device-prices", status_code=201)
def set_device_prices(body: DevicePricesCreate, context: Context) -> DevicePricesView:
    """Say what devices cost from a moment on; days before it keep what they cost."""
    now_s = context.clock.wall_s()
    book_id = new_id(DevicePrices.id_prefix, context.clock)
    per_kwh = parse_usd(body.usd_per_kwh)
    if per_kwh < 0:
        raise InvalidRequest("energy costs 0 dollars or more", param="usd_per_kwh")
    return _book_view(
        context.database.store.create(
            DevicePrices(
                id=book_id,
                name=book_id,
                create_time=now_s,
                effective_time=(
                    now_s if body.effective_time is None else wall_s_of(body.effective_time)
                ),
                prices={name: fields.price() for name, fields in body.prices.items()},
                nanousd_per_kwh=per_kwh,
            )
        )
    )


@router.get("/device-prices")
def list_device_prices(
    context: Context, after: After = "", limit: Limit = page_items_default
) -> Page[DevicePricesView]:
    """List what devices cost, the oldest prices first."""
    return page_of(context.database.store.list(DevicePrices), after, limit, _book_view)


@router.get("/costs")
def read_costs(
    context: Context,
    month: Annotated[Month | None, Query()] = None,
    first_day: Annotated[datetime.date | None, Query()] = None,
    last_day: Annotated[datetime.date | None, Query()] = None,
) -> Costs:
    """What the devices of a period cost, for whom they worked, and the margin."""
    try:
        days = PeriodFields(month=month, first_day=first_day, last_day=last_day).days()
    except ValueError:
        raise InvalidRequest("give `month`, or both `first_day` and `last_day`") from None
    since_s, until_s = bounds_of(days)
    database = context.database
    first, last = days[0].isoformat(), days[1].isoformat()
    shares: dict[str, dict[str, int]] = {}
    by_replica: dict[str, int] = {}
    for share in database.device_uses.shares(first, last):
        shares.setdefault(share.replica_id, {})[share.tenant_id] = share.computed_tokens
        earned = by_replica.get(share.replica_id, 0) + share.amount_nanousd
        by_replica[share.replica_id] = earned
    report = report_costs(
        database.device_uses.read(first, last),
        database.store.list(DevicePrices),
        shares,
        revenue_by_model={
            str(row.model): row.amount_nanousd
            for row in database.ledger.usage(("model",), since_s, until_s)
        },
        revenue_by_tenant={
            str(row.tenant_id): row.amount_nanousd
            for row in database.ledger.usage(("tenant",), since_s, until_s)
        },
        revenue_by_replica=by_replica,
    )
    names = {
        item.id: item.name for kind in (Tenant, Deployment) for item in database.store.list(kind)
    }
    names[idle] = "nobody"

    def named(line: CostLine) -> CostLineView:
        return _line_view(line, line.name or None, names.get(line.name, line.name))

    return Costs(
        first_day=days[0],
        last_day=days[1],
        total=_line_view(report.total, None, report.total.name),
        deployments=[named(line) for line in report.deployments],
        models=[_line_view(line, None, line.name) for line in report.models],
        tenants=[named(line) for line in report.tenants],
        unpriced_device_types=list(report.unpriced_device_types),
    )


def _line_view(line: CostLine, identity: str | None, name: str) -> CostLineView:
    return CostLineView(
        id=identity,
        name=name,
        device_hours=line.device_s / 3600.0,
        busy_share=line.busy_s / line.device_s if line.device_s else None,
        cost=Money.of(line.cost_nanousd),
        idle_cost=Money.of(line.idle_nanousd),
        energy_cost=Money.of(line.energy_nanousd),
        revenue=Money.of(line.revenue_nanousd),
        margin=Money.of(line.margin_nanousd),
    )


def _book_view(book: DevicePrices) -> DevicePricesView:
    return DevicePricesView(
        id=book.id,
        effective_time=moment(book.effective_time),
        prices={
            name: DevicePriceView(
                per_hour=Money.of(price.nanousd_per_hour),
                watts_busy=price.watts_busy,
                watts_idle=price.watts_idle,
            )
            for name, price in book.prices.items()
        },
        per_kwh=Money.of(book.nanousd_per_kwh),
    )
