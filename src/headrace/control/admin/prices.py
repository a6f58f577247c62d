"""Routes for price books: what models cost, and from when."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from headrace.base.errors import Conflict
from headrace.base.ids import new_id
from headrace.control.admin.access import Access
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.price_values import (
    AppliedPrices,
    PriceBookCreate,
    PriceBookView,
    book_view,
)
from headrace.control.admin.references import reject_id_as_name
from headrace.control.admin.values import wall_s_of
from headrace.spec.models import Model
from headrace.spec.prices import PriceBook
from headrace.spec.tenancy import Tenant

router = APIRouter()


@router.post("/prices", status_code=201)
def apply_prices(
    body: PriceBookCreate, access: Access, context: Context, response: Response
) -> AppliedPrices:
    """Add a price book; the same one again is answered (200), not added again.

    `unknown_models` are named in it and not registered: their prices wait for them."""
    if body.name is not None:
        reject_id_as_name(body.name)
    tenant_id = "" if body.tenant is None else access.resolve(Tenant, body.tenant).id
    effective_s = None if body.effective_time is None else wall_s_of(body.effective_time)
    prices = body.by_model()
    served = {model.name for model in context.database.store.list(Model)}
    unknown_models = sorted(set(prices) - served)
    now_s = context.clock.wall_s()
    book_id = new_id(PriceBook.id_prefix, context.clock)
    book = PriceBook(
        id=book_id,
        name=body.name or f"prices-{book_id[-8:]}",
        parent_id=tenant_id,
        create_time=now_s,
        effective_time=now_s if effective_s is None else effective_s,
        prices=prices,
        priority_percent=body.priority_percent,
        region_percent=body.region_percent,
        currency=body.currency or "",
        usd_per_unit="" if body.usd_per_unit is None else f"{body.usd_per_unit:f}",
    )
    same = _same_book(context, body.name, effective_s, book)
    if same is not None:
        response.status_code = 200
        return applied(same, unknown_models)
    return applied(context.database.store.create(book), unknown_models)


@router.get("/prices")
def list_prices(
    access: Access,
    context: Context,
    limit: Limit = page_items_default,
    after: After = "",
    tenant: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[PriceBookView]:
    """List price books: all, or those that hold for a tenant."""
    books = context.database.store.list(PriceBook)
    if tenant is not None:
        tenant_id = access.resolve(Tenant, tenant).id
        books = [book for book in books if book.parent_id in ("", tenant_id)]
    return page_of(books, after, limit, book_view)


def _same_book(
    context: AdminContext,
    name: str | None,
    effective_s: float | None,
    book: PriceBook,
) -> PriceBook | None:
    """The book of this name, or without a name the newest one, if it says just this.

    Conflict if a book of this name says something else: books never change."""
    if name is not None:
        found = context.database.store.find(PriceBook, name, book.parent_id)
    else:
        books = [
            each
            for each in context.database.store.list(PriceBook)
            if each.parent_id == book.parent_id
        ]
        found = max(books, key=lambda each: (each.create_time, each.id), default=None)
    if found is None:
        return None
    says = (book.prices, book.priority_percent, book.region_percent)
    said = (found.prices, found.priority_percent, found.region_percent)
    if says == said and effective_s in (None, found.effective_time):
        return found
    if name is None:
        return None
    raise Conflict(
        f"the price book {name!r} is there and says something else; books never change, so give "
        "the new one another name",
        param="name",
    )


def applied(book: PriceBook, unknown_models: list[str]) -> AppliedPrices:
    """The answer to a book that was sent."""
    return AppliedPrices(**book_view(book).model_dump(), unknown_models=unknown_models)
