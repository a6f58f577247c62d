"""Draw an invoice from sums of settlements.

subtotal = what the requests of the period were charged, exact
net      = subtotal + what the tenant's terms add or take off, to whole cents: its one rounding
tax      = net x rate, to whole cents, for each rule that holds
total    = net + taxes
due      = total less what prepaid credit covered; the account pays net amounts, never tax
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from headrace.base.errors import Conflict, InvalidRequest
from headrace.base.money import cost_nanousd, divided, nanousd_per_cent, to_cents
from headrace.billing.payable import payable_in
from headrace.billing.terms import adjustments_of
from headrace.spec.invoices import (
    Account,
    BillingProfile,
    Invoice,
    InvoiceLine,
    InvoiceState,
    InvoiceTax,
    Party,
    RatedUse,
    Seller,
    TaxRule,
    TokenClass,
    invoice_lines_max,
    tax_rate_ppm_max,
)
from headrace.spec.prices import Price, PriceBook, UnitPrices, unit_price_names
from headrace.spec.tenancy import Tenant
from headrace.spec.terms import Terms


def draw(
    invoice_id: str,
    tenant: Tenant,
    days: tuple[datetime.date, datetime.date],
    *,
    seller: Seller,
    profile: BillingProfile | None,
    uses: Iterable[RatedUse],
    books: Mapping[str, PriceBook],
    account: Account,
    terms: Terms | None = None,
) -> Invoice:
    """A draft for the days from the first to the last, both included."""
    first_day, last_day = days
    if last_day < first_day:
        raise InvalidRequest("an invoice's last day is not before its first", param="until")
    uses = sorted(uses, key=lambda use: (use.model, use.price_book_id or ""))
    lines = tuple(line for use in uses for line in lines_of(use, books))
    if len(lines) > invoice_lines_max:
        raise InvalidRequest(
            f"an invoice has at most {invoice_lines_max:,} lines, and this period has "
            f"{len(lines):,}; draw one for fewer days",
            param="until",
        )
    buyer = Party(name=tenant.name) if profile is None else profile.party
    subtotal = sum(line.amount_nanousd for line in lines)
    adjustments = adjustments_of(lines, terms, days, first_day_of(tenant))
    exact = subtotal + sum(adjustment.amount_nanousd for adjustment in adjustments)
    net = to_cents(exact)
    exempt = profile is not None and profile.tax_exempt
    taxes = () if exempt else taxes_of(seller.taxes, buyer, net)
    tax = sum(tax.amount_nanousd for tax in taxes)
    paid = paid_from_credit(net, account)
    currency = "" if profile is None else profile.currency
    return Invoice(
        id=invoice_id,
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        first_day=first_day.isoformat(),
        last_day=last_day.isoformat(),
        seller=seller.party,
        buyer=buyer,
        lines=lines,
        subtotal_nanousd=subtotal,
        adjustments=adjustments,
        rounding_nanousd=net - exact,
        taxes=taxes,
        total_nanousd=net + tax,
        paid_from_credit_nanousd=paid,
        due_nanousd=net + tax - paid,
        unrated_requests=sum(use.requests for use in uses if use.price_book_id is None),
        payment_note=seller.payment_note,
        payable=payable_in(currency, seller, net, tax, paid),
    )


def first_day_of(tenant: Tenant) -> datetime.date:
    """The UTC day on which a tenant was made."""
    return datetime.datetime.fromtimestamp(tenant.create_time, datetime.UTC).date()


def lines_of(use: RatedUse, books: Mapping[str, PriceBook]) -> list[InvoiceLine]:
    """The lines of one use; classes that were not used have none."""
    if use.price_book_id is None:
        return []
    book = books.get(use.price_book_id)
    price = None if book is None else book.prices.get(use.model)
    lines = [
        InvoiceLine(
            model=use.model,
            token_class=token_class,
            price_book_id=use.price_book_id,
            requests=use.requests,
            tokens=tokens,
            price_nanousd_per_million=quoted if explains(quoted, tokens, amount, use) else None,
            amount_nanousd=amount,
        )
        for token_class, tokens, quoted, amount in classes_of(use, price)
        if tokens or amount
    ]
    lines += unit_lines_of(use, use.price_book_id, price)
    return sorted(lines, key=lambda line: line.token_class is TokenClass.WAIVED)


def unit_lines_of(use: RatedUse, price_book_id: str, price: Price | None) -> list[InvoiceLine]:
    """The lines of what was charged by other units than tokens."""
    quoted = UnitPrices() if price is None or price.units is None else price.units
    counted = zip(unit_price_names, use.units, unit_classes, quoted.amounts(), strict=True)
    return [
        InvoiceLine(
            model=use.model,
            token_class=unit_class,
            price_book_id=price_book_id,
            requests=use.requests,
            tokens=0,
            price_nanousd_per_million=None,
            amount_nanousd=amount,
            units=units_text(unit_class, count),
            price_nanousd_per_unit=each if is_exact(each, unit_class, count, use, amount) else None,
        )
        for name, count, unit_class, each in counted
        if (amount := getattr(use.charge, name))
    ]


unit_classes = (TokenClass.REQUESTS, TokenClass.IMAGES, TokenClass.AUDIO, TokenClass.CHARACTERS)


def units_text(unit_class: TokenClass, count: int) -> str:
    """A number of units as it is printed; sound is counted in milliseconds."""
    return str(Decimal(count) / 1000 if unit_class is TokenClass.AUDIO else count)


def is_exact(
    each: int | None, unit_class: TokenClass, count: int, use: RatedUse, amount_nanousd: int
) -> bool:
    """Whether a price and the units make the amount, but for each request's rounding."""
    if each is None:
        return False
    whole = each * count
    exact = divided(whole, 1000) if unit_class is TokenClass.AUDIO else whole
    return abs(exact - amount_nanousd) <= use.requests


def explains(quoted: int | None, tokens: int, amount_nanousd: int, use: RatedUse) -> bool:
    """Whether a price and the tokens make the amount, but for each request's rounding.

    They don't where some requests had another tier or class of service."""
    if quoted is None:
        return False
    return abs(cost_nanousd(tokens, quoted) - amount_nanousd) <= use.requests


def classes_of(use: RatedUse, price: Price | None) -> list[tuple[TokenClass, int, int | None, int]]:
    """Class, tokens, quoted price and amount; a class without a price of its own is in another.

    Without the book nothing is known of prices, and amounts alone tell the classes apart."""
    usage, charge = use.usage, use.charge
    quoted = {field: getattr(price, f"{field}_nanousd_per_million", None) for field in class_fields}
    image = 0 if quoted["image"] is None else usage.image_tokens or 0
    embedding = 0 if quoted["embedding"] is None else usage.embedding_tokens or 0
    reasoning = 0 if quoted["reasoning"] is None else usage.reasoning_tokens or 0
    draft = 0 if quoted["draft"] is None else usage.draft_tokens or 0
    tokens = {
        "input": usage.prompt_tokens - usage.cached_tokens - image - embedding,
        "cached_input": usage.cached_tokens,
        "output": usage.completion_tokens - reasoning,
        "reasoning": reasoning,
        "draft": draft,
        "embedding": embedding,
        "image": image,
    }
    return [
        (token_class, tokens[field], quoted[field], getattr(charge, f"{field}_nanousd"))
        for field, token_class in class_fields.items()
    ] + [(TokenClass.WAIVED, 0, None, -charge.waived_nanousd)]


class_fields: Mapping[str, TokenClass] = {  # the beginnings of the names of price and charge fields
    "input": TokenClass.INPUT,
    "cached_input": TokenClass.CACHED_INPUT,
    "output": TokenClass.OUTPUT,
    "reasoning": TokenClass.REASONING,
    "draft": TokenClass.DRAFT,
    "embedding": TokenClass.EMBEDDING,
    "image": TokenClass.IMAGE,
}


def taxes_of(rules: Sequence[TaxRule], buyer: Party, net_nanousd: int) -> tuple[InvoiceTax, ...]:
    """The tax of the first rule that fits the buyer; none if none does."""
    for rule in rules:
        if rule.countries is not None and buyer.country not in rule.countries:
            continue
        if rule.without_tax_id_only and buyer.tax_id:
            continue
        return (
            InvoiceTax(
                name=rule.name,
                rate_ppm=rule.rate_ppm,
                amount_nanousd=share(net_nanousd, rule.rate_ppm),
                note=rule.note,
            ),
        )
    return ()


def share(amount_nanousd: int, rate_ppm: int) -> int:
    """A rate of an amount in whole cents."""
    cents = divided(amount_nanousd * rate_ppm, tax_rate_ppm_max * nanousd_per_cent)
    return cents * nanousd_per_cent


def paid_from_credit(net_nanousd: int, account: Account) -> int:
    """How much of the net was prepaid: what was left over from before, and came in meanwhile."""
    available = max(0, account.opening_nanousd + account.credits_nanousd)
    return min(max(0, net_nanousd), available - available % nanousd_per_cent)


def finalized(invoice: Invoice, number: str, issue_day: datetime.date, due_days: int) -> Invoice:
    """The invoice as it is sent; Conflict if it was already."""
    if invoice.state is not InvoiceState.DRAFT:
        raise Conflict(
            f"the invoice {invoice.number} is final; correct it with a credit note", id=invoice.id
        )
    return msgspec.structs.replace(
        invoice,
        state=InvoiceState.FINALIZED,
        number=number,
        issue_day=issue_day.isoformat(),
        due_day=(issue_day + datetime.timedelta(days=due_days)).isoformat(),
    )


def credited(invoice: Invoice, net_nanousd: int, before: int) -> tuple[int, int]:
    """The net amount and its tax of a credit note, where `before` was credited already (net).

    Conflict if the invoice is not final; InvalidRequest if it would be more than was billed."""
    if invoice.state is not InvoiceState.FINALIZED:
        raise Conflict("a draft is drawn anew, not credited; finalize it first", id=invoice.id)
    billed = invoice.net_nanousd
    if not 0 < net_nanousd <= billed - before or net_nanousd % nanousd_per_cent:
        raise InvalidRequest(
            "a credit note is in whole cents, over 0 and at most what is left of the invoice's "
            f"net amount: {(billed - before) / 1e9:.2f} dollars",
            param="amount_usd",
        )
    rate = sum(tax.rate_ppm for tax in invoice.taxes)
    # The tax of all that is credited so far less that of before, so that no part loses a cent.
    return net_nanousd, share(before + net_nanousd, rate) - share(before, rate)
