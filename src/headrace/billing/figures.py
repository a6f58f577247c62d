"""How amounts are printed on an invoice: dollars with a fixed number of digits, and rates."""

from headrace.base.money import format_usd
from headrace.spec.invoices import InvoiceLine, Payable, TokenClass


def dollars(amount_nanousd: int) -> str:
    """Whole cents with thousands separated: `$1,234.50`; more digits where they are not zero."""
    text = format_usd(abs(amount_nanousd))
    whole, _, fraction = text.partition(".")
    sign = "-" if amount_nanousd < 0 else ""
    return f"{sign}${int(whole):,}.{fraction}"


def rate(rate_ppm: int) -> str:
    """Parts per million as a percentage: `19%`, `7.7%`."""
    return f"{rate_ppm / 10_000:g}%"


def named_rate(name: str, rate_ppm: int) -> str:
    """A tax or discount with its rate, once: `VAT (19%)`, and `VAT 19%` where the name says it."""
    return name if rate(rate_ppm) in name.split() else f"{name} ({rate(rate_ppm)})"


def count(number: int) -> str:
    """An integer with thousands separated."""
    return f"{number:,}"


def counted(line: InvoiceLine) -> str:
    """What a line counts, in words: `output tokens`, `images`."""
    says_it = line.units or line.token_class in (TokenClass.DRAFT, TokenClass.WAIVED)
    return line.token_class.value if says_it else f"{line.token_class.value} tokens"


def quantity(line: InvoiceLine) -> str:
    """What a line counts; empty where that says nothing."""
    if line.units:
        whole, point, fraction = line.units.partition(".")
        return count(int(whole)) + point + fraction
    return count(line.tokens) if line.tokens else ""


def price(line: InvoiceLine) -> str:
    """What a million tokens of a line cost, or each of its units; empty where no one price did."""
    if line.price_nanousd_per_unit is not None:
        return f"{dollars(line.price_nanousd_per_unit)} each"
    each = line.price_nanousd_per_million
    return "" if each is None else f"{dollars(each)} a million"


def in_currency(units: int, payable: Payable) -> str:
    """An amount of another currency: `1,234.50 EUR`."""
    whole, fraction = divmod(abs(units), 10**payable.digits)
    sign = "-" if units < 0 else ""
    point = f".{fraction:0{payable.digits}d}" if payable.digits else ""
    return f"{sign}{whole:,}{point} {payable.currency}"


def exchange(payable: Payable) -> str:
    """The rate in words: `at 0.92 EUR a dollar`."""
    rate = format_usd(payable.rate_millionths * 1000)
    return f"at {rate} {payable.currency} a dollar"
