"""An invoice's amounts in the buyer's currency, at the rate that the seller names.

The books are in dollars; what is converted is the net amount, each tax and what credit paid, each
rounded once to the currency's smallest unit, so that the printed sums add up.
"""

from collections.abc import Mapping

from headrace.base.errors import InvalidRequest
from headrace.base.money import divided, nanousd_per_usd
from headrace.spec.invoices import Payable, Seller, rate_scale

# ISO 4217: digits after the point; every other currency has two.
_unusual_digits: Mapping[str, int] = {
    **dict.fromkeys(("CLP", "ISK", "JPY", "KRW", "PYG", "UGX", "VND", "XAF", "XOF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}


def currency_digits(currency: str) -> int:
    """How many digits a currency has after the point."""
    return _unusual_digits.get(currency, 2)


def payable_in(
    currency: str, seller: Seller, net_nanousd: int, tax_nanousd: int, paid_nanousd: int
) -> Payable | None:
    """The amounts in a currency; None for dollars. InvalidRequest if the seller names no rate."""
    if currency in ("", "USD"):
        return None
    rate = seller.exchange_rates.get(currency)
    if rate is None:
        raise InvalidRequest(
            f"the buyer pays in {currency} and the seller names no rate for it; add it to the "
            "seller's `exchange_rates`",
            param="currency",
        )
    digits = currency_digits(currency)
    net, tax, paid = (
        divided(amount * rate * 10**digits, rate_scale * nanousd_per_usd)
        for amount in (net_nanousd, tax_nanousd, paid_nanousd)
    )
    return Payable(currency, digits, rate, net, tax, net + tax, net + tax - paid)
