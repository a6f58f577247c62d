"""The route for how each tenant is billed: what was agreed, whom invoices go to, how it pays."""

from fastapi import APIRouter
from pydantic import BaseModel

from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import Context
from headrace.control.admin.invoice_views import ProfileView, profile_view
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.payments import AgreementView, agreement_view
from headrace.control.admin.terms import TermsView, terms_view
from headrace.control.invoicing import profile_name, terms_name
from headrace.control.payments.payments import agreement_name
from headrace.spec.invoices import BillingProfile
from headrace.spec.payments import PaymentAgreement
from headrace.spec.roles import Permission
from headrace.spec.tenancy import Tenant
from headrace.spec.terms import Terms

router = APIRouter()


class BillingView(BaseModel):
    """How one tenant is billed."""

    tenant_id: str
    tenant: str
    terms: TermsView | None  # its own, or everybody's (no `tenant_id`); null: nothing was agreed
    profile: ProfileView | None  # null: its invoices carry its name alone
    agreement: AgreementView | None  # null: it does not pay by a provider


@router.get("/billing")
@allows(Permission.BILLING_READ)
def list_billing(
    access: Access, context: Context, limit: Limit = page_items_default, after: After = ""
) -> Page[BillingView]:
    """List how tenants are billed."""
    store = context.database.store
    terms = {item.parent_id: item for item in store.list(Terms) if item.name == terms_name}
    profiles = {
        item.parent_id: item for item in store.list(BillingProfile) if item.name == profile_name
    }
    agreements = {
        item.parent_id: item for item in store.list(PaymentAgreement) if item.name == agreement_name
    }

    def view(tenant: Tenant) -> BillingView:
        agreed = terms.get(tenant.id) or terms.get("")
        profile, agreement = profiles.get(tenant.id), agreements.get(tenant.id)
        return BillingView(
            tenant_id=tenant.id,
            tenant=tenant.name,
            terms=None if agreed is None else terms_view(agreed),
            profile=None if profile is None else profile_view(profile),
            agreement=None if agreement is None else agreement_view(agreement),
        )

    return page_of(access.visible.list(Tenant), after, limit, view)
