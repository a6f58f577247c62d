"""What agreed terms add to an invoice and take from it, after each request was charged.

Shares are rounded down to nano-dollars: a discount never takes more than was agreed.
"""

import calendar
import datetime
from collections.abc import Sequence

from headrace.spec.invoices import Adjustment, InvoiceLine
from headrace.spec.terms import Terms, VolumeStep, share_ppm_max


def adjustments_of(
    lines: Sequence[InvoiceLine],
    terms: Terms | None,
    days: tuple[datetime.date, datetime.date],
    since: datetime.date = datetime.date.min,
) -> tuple[Adjustment, ...]:
    """The adjustments of an invoice over these days, in the order in which they count.

    `since` is the tenant's first day: nobody committed to anything before it."""
    if terms is None:
        return ()
    by_month = is_month(days)
    found = free_of(lines, terms) if by_month else []
    rest = sum(line.amount_nanousd for line in lines) + sum(each.amount_nanousd for each in found)
    if terms.discount_ppm:
        off = share_down(max(0, rest), terms.discount_ppm)
        found.append(Adjustment("Discount", -off, terms.discount_ppm))
        rest -= off
    if by_month:
        off = volume_discount(terms.volume, rest)
        if off:
            found.append(Adjustment("Volume discount", -off))
        rest -= off
        minimum = minimum_of(terms.minimum_nanousd, days, since)
        if rest < minimum:
            found.append(Adjustment("Up to the monthly minimum", minimum - rest))
    return tuple(each for each in found if each.amount_nanousd)


def minimum_of(
    month_nanousd: int, days: tuple[datetime.date, datetime.date], since: datetime.date
) -> int:
    """The commitment of a month, by the days of it on which the tenant was there."""
    first, last = days
    there = (last - max(first, since)).days + 1
    return month_nanousd * max(0, there) // ((last - first).days + 1)


def is_month(days: tuple[datetime.date, datetime.date]) -> bool:
    """Whether the days are one whole calendar month."""
    first, last = days
    last_of_month = calendar.monthrange(first.year, first.month)[1]
    return first.day == 1 and last == first.replace(day=last_of_month)


def free_of(lines: Sequence[InvoiceLine], terms: Terms) -> list[Adjustment]:
    """What free tokens take off, by model: their part of the model's amount."""
    found = []
    for model, free in sorted(terms.free_tokens.items()):
        own = [line for line in lines if line.model == model and not line.units]
        tokens = sum(line.tokens for line in own)
        amount = sum(line.amount_nanousd for line in own)
        if tokens and amount > 0:
            taken = amount * min(free, tokens) // tokens
            found.append(Adjustment(f"{min(free, tokens):,} free tokens of {model}", -taken))
    return found


def volume_discount(steps: Sequence[VolumeStep], amount_nanousd: int) -> int:
    """What the steps take off: each of what lies between its bound and the next one's."""
    off = 0
    for number, step in enumerate(steps):
        end = steps[number + 1].over_nanousd if number + 1 < len(steps) else amount_nanousd
        within = min(amount_nanousd, end) - step.over_nanousd
        off += share_down(max(0, within), step.discount_ppm)
    return off


def share_down(amount_nanousd: int, share_ppm: int) -> int:
    """A share, rounded down."""
    return amount_nanousd * share_ppm // share_ppm_max
