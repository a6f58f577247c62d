"""A seller, a tenant and what it used."""

import datetime
from collections.abc import Callable

import pytest

from headrace.billing.draft import draw
from headrace.spec.invoices import (
    Account,
    BillingProfile,
    Invoice,
    Party,
    RatedUse,
    Seller,
    TaxRule,
)
from headrace.spec.prices import Price, PriceBook
from headrace.spec.settlements import Charge, TokenUsage
from headrace.spec.tenancy import Tenant

november = (datetime.date(2026, 11, 1), datetime.date(2026, 11, 30))
tenant = Tenant(id="ten_1", name="acme", create_time=0.0)
seller = Seller(
    id="sel_1",
    name="seller",
    create_time=0.0,
    party=Party(name="Compute GmbH", address=("Mühlenweg 3",), country="DE"),
    taxes=(
        TaxRule(name="VAT", rate_ppm=190_000, countries=("DE",)),
        TaxRule(name="Reverse charge", rate_ppm=0, countries=("FR",), note="You owe the tax."),
    ),
    payment_note="Pay soon.",
)
book = PriceBook(
    id="prb_1",
    name="november",
    create_time=0.0,
    effective_time=0.0,
    prices={
        "small": Price(
            input_nanousd_per_million=100_000_000,
            cached_input_nanousd_per_million=20_000_000,
            output_nanousd_per_million=400_000_000,
        )
    },
)


def profile(country: str = "DE", *, tax_id: str = "", exempt: bool = False) -> BillingProfile:
    party = Party(name="Acme <Łódź>", country=country, tax_id=tax_id)
    return BillingProfile(
        id="bpr_1",
        name="profile",
        parent_id=tenant.id,
        create_time=0.0,
        party=party,
        tax_exempt=exempt,
    )


def use(
    model: str = "small", book_id: str | None = "prb_1", *, requests: int = 1, **counts: int
) -> RatedUse:
    tokens = {name: count for name, count in counts.items() if name.endswith("_tokens")}
    amounts = {name: count for name, count in counts.items() if name.endswith("_nanousd")}
    return RatedUse(
        model=model,
        price_book_id=book_id,
        requests=requests,
        usage=TokenUsage(**tokens),
        charge=Charge(**amounts),
    )


Draw = Callable[..., Invoice]


@pytest.fixture
def drawn() -> Draw:
    """Draws November's invoice of some uses."""

    def draw_november(
        *uses: RatedUse,
        buyer: BillingProfile | None = None,
        opening: int = 0,
        credits_nanousd: int = 0,
    ) -> Invoice:
        return draw(
            "inv_1",
            tenant,
            november,
            seller=seller,
            profile=buyer,
            uses=uses,
            books={book.id: book},
            account=Account(opening_nanousd=opening, credits_nanousd=credits_nanousd),
        )

    return draw_november


@pytest.fixture
def a_use() -> Callable[..., RatedUse]:
    return use


@pytest.fixture
def a_profile() -> Callable[..., BillingProfile]:
    return profile
