"""Invoices from the books: drawn for whole UTC days, numbered when they are final, corrected.

The same ledger, prices and addresses give the same draft, its id included.
"""

import datetime
import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, NotFound
from headrace.base.ids import alphabet, body_length, new_id
from headrace.billing import draft
from headrace.spec.invoices import (
    BillingProfile,
    CreditNote,
    Invoice,
    InvoiceState,
    Party,
    Seller,
)
from headrace.spec.prices import PriceBook
from headrace.spec.tenancy import Tenant
from headrace.spec.terms import Terms
from headrace.storage.database import Database

seller_name = "seller"  # a platform has one
profile_name = "billing"  # a tenant has one
terms_name = "terms"  # a tenant has one, and everybody
credit_note_prefix = "CN"

Days = tuple[datetime.date, datetime.date]


class Invoicing:
    """Draws, numbers and corrects invoices; synchronous, safe from any thread."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def seller(self) -> Seller:
        """Who writes the invoices; Conflict where nobody was named."""
        found = self._database.store.find(Seller, seller_name)
        if found is None:
            raise Conflict(
                "nobody writes the invoices yet; name the seller with "
                "`headrace invoices seller -f FILE`"
            )
        return found

    def set_seller(self, seller: Seller) -> Seller:
        """Name who writes the invoices from now on."""
        before = self._database.store.find(Seller, seller_name)
        if before is None:
            return self._database.store.create(seller)
        return self._database.store.update(
            msgspec.structs.replace(
                seller, id=before.id, create_time=before.create_time, version=before.version
            )
        )

    def profile(self, tenant: Tenant) -> BillingProfile | None:
        """Whom a tenant's invoices go to; None: nobody said, so they carry its name alone."""
        return self._database.store.find(BillingProfile, profile_name, tenant.id)

    def set_profile(
        self, tenant: Tenant, party: Party, *, tax_exempt: bool, currency: str
    ) -> BillingProfile:
        """Say whom a tenant's invoices go to from now on."""
        before = self.profile(tenant)
        if before is not None:
            return self._database.store.update(
                msgspec.structs.replace(
                    before, party=party, tax_exempt=tax_exempt, currency=currency
                )
            )
        return self._database.store.create(
            BillingProfile(
                id=new_id(BillingProfile.id_prefix, self._clock),
                name=profile_name,
                parent_id=tenant.id,
                create_time=self._clock.wall_s(),
                party=party,
                tax_exempt=tax_exempt,
                currency=currency,
            )
        )

    def terms(self, tenant: Tenant | None) -> Terms | None:
        """What holds for a tenant, its own terms or everybody's; None: nothing was agreed."""
        own = None if tenant is None else self._database.store.find(Terms, terms_name, tenant.id)
        return own or self._database.store.find(Terms, terms_name)

    def set_terms(self, tenant: Tenant | None, terms: Terms) -> Terms:
        """Agree on a tenant's terms, or everybody's, for invoices that are drawn from now on."""
        parent_id = "" if tenant is None else tenant.id
        before = self._database.store.find(Terms, terms_name, parent_id)
        if before is None:
            return self._database.store.create(terms)
        return self._database.store.update(
            msgspec.structs.replace(
                terms, id=before.id, create_time=before.create_time, version=before.version
            )
        )

    def drop_terms(self, tenant: Tenant | None) -> None:
        """Forget a tenant's own terms, or everybody's; NotFound if there are none."""
        found = self._database.store.find(Terms, terms_name, "" if tenant is None else tenant.id)
        if found is None:
            raise NotFound("no terms were agreed", param="tenant")
        self._database.store.delete(found)

    def draw(self, tenants: Sequence[Tenant], days: Days) -> list[Invoice]:
        """Draw and keep a draft for each tenant."""
        drafts = self._drawn(tenants, days)
        for invoice in drafts:
            self._database.invoices.save_draft(invoice)
        return drafts

    def finalize(
        self, invoice: Invoice, *, allow_unrated: bool = False, allow_zero: bool = False
    ) -> Invoice:
        """Draw the invoice once more, give it the next number and make it final.

        What its terms add or take off is booked with it, so that the balance follows the invoice.
        Conflict while its days are not over, while some of its use has no price, or if it charges
        and books nothing: such a draft stays one, so that numbers stand for invoices."""
        if invoice.state is not InvoiceState.DRAFT:
            raise Conflict(
                f"the invoice {invoice.number} is final; correct it with a credit note",
                id=invoice.id,
            )
        today = self._today()
        last_day = datetime.date.fromisoformat(invoice.last_day)
        if last_day >= today:
            raise Conflict(
                f"the invoice's last day, {last_day}, is not over in UTC; finalize it from "
                f"{last_day + datetime.timedelta(days=1)} on"
            )
        seller = self.seller()
        tenant = self._database.store.get(Tenant, invoice.tenant_id)
        days = (datetime.date.fromisoformat(invoice.first_day), last_day)
        [current] = self._drawn([tenant], days)
        if current.unrated_requests and not allow_unrated:
            raise Conflict(
                f"{current.unrated_requests:,} requests of this period used models without a "
                "price; apply prices and rate them, or finalize with `allow_unrated`"
            )

        if not (current.total_nanousd or current.adjusted_nanousd or allow_zero):
            raise Conflict(
                "these days charge nothing, so the draft needs no number; finalize with "
                "`allow_zero` (`--allow-zero`) if the buyer wants the document"
            )

        def numbered(number: str) -> Invoice:
            return draft.finalized(current, number, today, seller.payment_days)

        with self._database.transaction():
            final = self._database.invoices.number(current, seller.number_prefix, numbered)
            if final.adjusted_nanousd:
                self._database.ledger.credit(
                    tenant.id,
                    -final.adjusted_nanousd,
                    f"terms-{final.id}",
                    f"terms of invoice {final.number}",
                )
        return final

    def credit(self, invoice: Invoice, net_nanousd: int, reason: str) -> CreditNote:
        """Take back a part of a final invoice: a numbered note, and credit in the tenant's account.

        InvalidRequest if it is more than what is left of the invoice."""
        note_id = new_id("crn", self._clock)
        today = self._today()

        def noted(number: str, before_nanousd: int) -> CreditNote:
            net, tax = draft.credited(invoice, net_nanousd, before_nanousd)
            return CreditNote(
                id=note_id,
                number=number,
                invoice_id=invoice.id,
                invoice_number=str(invoice.number),
                tenant_id=invoice.tenant_id,
                issue_day=today.isoformat(),
                reason=reason,
                seller=invoice.seller,
                buyer=invoice.buyer,
                net_nanousd=net,
                tax_nanousd=tax,
                total_nanousd=net + tax,
            )

        with self._database.transaction():
            note = self._database.invoices.add_credit_note(invoice, credit_note_prefix, noted)
            self._database.ledger.credit(
                invoice.tenant_id,
                net_nanousd,
                note.id,
                f"credit note {note.number}: {reason}"[:255],
            )
        return note

    def _drawn(self, tenants: Sequence[Tenant], days: Days) -> list[Invoice]:
        seller = self.seller()
        books = {book.id: book for book in self._database.store.list(PriceBook)}
        only = tenants[0].id if len(tenants) == 1 else None
        uses = self._database.invoices.rated_uses(*days, only)
        return [
            draft.draw(
                invoice_id((tenant.id, *days)),
                tenant,
                days,
                seller=seller,
                profile=self.profile(tenant),
                uses=uses.get(tenant.id, ()),
                books=books,
                account=self._database.invoices.account(tenant.id, *days),
                terms=self.terms(tenant),
            )
            for tenant in tenants
        ]

    def _today(self) -> datetime.date:
        return datetime.datetime.fromtimestamp(self._clock.wall_s(), datetime.UTC).date()


def invoice_id(parts: Iterable[object]) -> str:
    """The id of a tenant's invoice over some days: the same whenever it is drawn."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return "inv_" + "".join(alphabet[byte & 31] for byte in digest[:body_length])
