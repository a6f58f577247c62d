"""Routes for what was agreed beyond the price list: discounts, free tokens, a monthly minimum."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from headrace.base.errors import InvalidRequest, NotFound
from headrace.base.ids import new_id
from headrace.base.money import parse_usd
from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.references import ModelName
from headrace.control.admin.values import Dollars, Money, RequestBody
from headrace.control.invoicing import Invoicing, terms_name
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant
from headrace.spec.terms import Terms, VolumeStep

router = APIRouter()

Percent = Annotated[float, Field(ge=0, le=100)]
TokenCount = Annotated[int, Field(ge=0, le=10**15)]
ppm_per_percent = 10_000


class VolumeStepFields(RequestBody):
    """A discount on what a month's amount has above a bound."""

    over_usd: Dollars
    percent: Percent


class TermsFields(RequestBody):
    """Terms; what is left out is not agreed."""

    discount_percent: Percent = 0.0
    free_tokens: dict[ModelName, TokenCount] = Field(default_factory=dict, max_length=10_000)
    volume: Annotated[tuple[VolumeStepFields, ...], Field(max_length=20)] = ()
    minimum_usd: Dollars = "0"

    def terms(self, context: AdminContext, parent_id: str) -> Terms:
        """The value that is kept; InvalidRequest says what cannot be."""
        try:
            return Terms(
                id=new_id(Terms.id_prefix, context.clock),
                name=terms_name,
                parent_id=parent_id,
                create_time=context.clock.wall_s(),
                discount_ppm=round(self.discount_percent * ppm_per_percent),
                free_tokens=self.free_tokens,
                volume=tuple(
                    VolumeStep(parse_usd(step.over_usd), round(step.percent * ppm_per_percent))
                    for step in self.volume
                ),
                minimum_nanousd=parse_usd(self.minimum_usd),
            )
        except ValueError as error:
            raise InvalidRequest(str(error)) from None


class VolumeStepView(BaseModel):
    """A discount on what a month's amount has above a bound."""

    over: Money
    percent: float


class TermsView(BaseModel):
    """What holds."""

    tenant_id: str | None  # null: everybody without own terms
    discount_percent: float
    free_tokens: dict[str, int]
    volume: list[VolumeStepView]
    minimum: Money


@router.put("/terms")
def set_common_terms(body: TermsFields, context: Context) -> TermsView:
    """Agree on the terms of everybody who has none of its own."""
    return terms_view(_invoicing(context).set_terms(None, body.terms(context, "")))


@router.get("/terms")
def show_common_terms(context: Context) -> TermsView:
    """Show everybody's terms."""
    return _found(_invoicing(context).terms(None))


@router.delete("/terms", status_code=204)
def drop_common_terms(context: Context) -> None:
    """Forget everybody's terms; invoices that are final stay."""
    _invoicing(context).drop_terms(None)


@router.put("/tenants/{tenant}/terms")
def set_terms(tenant: str, body: TermsFields, access: Access, context: Context) -> TermsView:
    """Agree on a tenant's own terms, in place of everybody's."""
    found = access.resolve(Tenant, tenant)
    return terms_view(_invoicing(context).set_terms(found, body.terms(context, found.id)))


@router.get("/tenants/{tenant}/terms")
@allows(Permission.BILLING_READ)
def show_terms(tenant: str, access: Access, context: Context) -> TermsView:
    """Show the terms that hold for a tenant."""
    return _found(_invoicing(context).terms(access.resolve(Tenant, tenant)))


@router.delete("/tenants/{tenant}/terms", status_code=204)
def drop_terms(tenant: str, access: Access, context: Context) -> None:
    """Forget a tenant's own terms; everybody's hold for it again."""
    _invoicing(context).drop_terms(access.resolve(Tenant, tenant))


def _invoicing(context: AdminContext) -> Invoicing:
    return Invoicing(context.database, context.clock)


def _found(terms: Terms | None) -> TermsView:
    if terms is None:
        raise NotFound("no terms were agreed", param="tenant")
    return terms_view(terms)


def terms_view(terms: Terms) -> TermsView:
    """Terms as they are shown."""
    return TermsView(
        tenant_id=terms.parent_id or None,
        discount_percent=terms.discount_ppm / ppm_per_percent,
        free_tokens=dict(terms.free_tokens),
        volume=[
            VolumeStepView(
                over=Money.of(step.over_nanousd), percent=step.discount_ppm / ppm_per_percent
            )
            for step in terms.volume
        ],
        minimum=Money.of(terms.minimum_nanousd),
    )
