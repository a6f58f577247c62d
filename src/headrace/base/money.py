"""Money as integers of a billionth of a US dollar, with the one function that rounds.

Prices are quoted a million tokens; 1 nano-dollar a million tokens is the smallest step a price
can take, far below what anyone charges.
"""

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

nanousd_per_usd = 1_000_000_000
nanousd_per_cent = nanousd_per_usd // 100
tokens_per_price_unit = 1_000_000


def cost_nanousd(token_count: int, price_nanousd_per_million: int) -> int:
    """Price `token_count` tokens; rounds half to even, once, at the line of a bill."""
    return divided(token_count * price_nanousd_per_million, tokens_per_price_unit)


def to_cents(amount_nanousd: int) -> int:
    """The nearest whole cents, in nano-dollars; half a cent goes to the even one."""
    return divided(amount_nanousd, nanousd_per_cent) * nanousd_per_cent


def divided(amount: int, parts: int) -> int:
    """An integer quotient of positive `parts`, rounded half to even."""
    quotient, remainder = divmod(amount, parts)
    doubled = remainder * 2
    return quotient + (doubled > parts or (doubled == parts and quotient % 2 == 1))


def parse_usd(text: str) -> int:
    """Read a decimal number of dollars as nano-dollars; ValueError if it is not one."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"not an amount of dollars: {text!r}") from None
    if not amount.is_finite():
        raise ValueError(f"not an amount of dollars: {text!r}")
    return int((amount * nanousd_per_usd).to_integral_value(ROUND_HALF_EVEN))


def format_usd(amount_nanousd: int) -> str:
    """Write nano-dollars as dollars with every digit that matters, at least two decimals."""
    sign = "-" if amount_nanousd < 0 else ""
    whole, fraction = divmod(abs(amount_nanousd), nanousd_per_usd)
    digits = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"
