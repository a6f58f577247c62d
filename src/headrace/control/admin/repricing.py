"""Routes for prices after the fact: try a price book on what was used, rate what has no price."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict
from headrace.billing.trial import try_prices
from headrace.control.admin.access import Access
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.invoice_values import PeriodFields, bounds_of
from headrace.control.admin.price_values import PriceFields
from headrace.control.admin.references import ModelName, Reference
from headrace.control.admin.values import Money
from headrace.ledger import rating
from headrace.spec.prices import Price, PriceBook, PriceVersion, price_at
from headrace.spec.settlements import Charge, Settlement
from headrace.spec.tenancy import Tenant

router = APIRouter()


class Period(PeriodFields):
    """A month, or the days from the first to the last."""

    def bounds(self) -> tuple[float, float]:
        """Its beginning and end in seconds since the epoch."""
        return bounds_of(self.days())


class PriceTrial(Period):
    """Prices to try on a period that was used at others."""

    tenant: Reference | None = None  # on its use alone; None: on everybody's
    prices: Annotated[dict[ModelName, PriceFields], Field(min_length=1, max_length=10_000)]


class TrialView(BaseModel):
    """What a tenant's use of a model cost, and would have cost."""

    tenant: str
    model: str
    requests: int
    unrated_requests: int
    charged: Money
    tried: Money


class Trial(BaseModel):
    """The whole trial."""

    items: list[TrialView]
    charged: Money
    tried: Money


class RatedView(BaseModel):
    """How many requests got a price."""

    rated_requests: int


@router.post("/prices/try")
def try_price_book(body: PriceTrial, access: Access, context: Context) -> Trial:
    """Compute what a period would have cost at other prices; nothing is changed."""
    prices = {model: fields.price() for model, fields in body.prices.items()}
    names = {tenant.id: tenant.name for tenant in context.database.store.list(Tenant)}
    tenant_id = None if body.tenant is None else access.resolve(Tenant, body.tenant).id
    used = context.database.late_rating.read(*body.bounds(), tenant_id)
    rows = try_prices(used, prices, _rate)
    return Trial(
        items=[
            TrialView(
                tenant=names.get(row.tenant_id, row.tenant_id),
                model=row.model,
                requests=row.requests,
                unrated_requests=row.unrated_requests,
                charged=Money.of(row.charged_nanousd),
                tried=Money.of(row.tried_nanousd),
            )
            for row in rows
        ],
        charged=Money.of(sum(row.charged_nanousd for row in rows)),
        tried=Money.of(sum(row.tried_nanousd for row in rows)),
    )


@router.post("/prices/rate")
def rate_unrated(body: Period, context: Context) -> RatedView:
    """Rate what had no price when it was used, at the price of then or its model's first; for good.

    Conflict if a final invoice has some of these days: what it left out is not billed any more."""
    first_day, last_day = body.days()
    for invoice in context.database.invoices.list():
        if invoice.number is not None and (
            invoice.first_day <= last_day.isoformat() and first_day.isoformat() <= invoice.last_day
        ):
            raise Conflict(
                f"the invoice {invoice.number} has some of these days and is final; rate others"
            )
    rated = context.database.late_rating.rate(
        _newest_prices(context), rating.rated_late, *body.bounds()
    )
    return RatedView(rated_requests=rated)


class _NewestPrices:
    """The price at the time of use; before a model's first price, that first one."""

    def __init__(self, books: list[PriceBook]) -> None:
        self._books = books
        self._first: dict[str, PriceBook] = {}  # everybody's
        for book in sorted(books, key=lambda book: (book.effective_time, book.id)):
            for model in book.prices:
                if not book.parent_id:
                    self._first.setdefault(model, book)

    def __call__(self, tenant_id: str, model: str, time_s: float) -> PriceVersion | None:
        found = price_at(self._books, model, time_s, tenant_id)
        if found is not None:
            return found
        first = self._first.get(model)
        return None if first is None else PriceVersion(first.id, first.prices[model])


def _newest_prices(context: AdminContext) -> _NewestPrices:
    return _NewestPrices(context.database.store.list(PriceBook))


def _rate(price: Price, settlement: Settlement) -> Charge:
    return rating.rate(price, settlement.usage, rating.nothing_reserved, settlement.units)
