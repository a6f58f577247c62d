"""How much is left of each grant: what was used, taken from the grants in their order.

Time falls into spans between the moments at which a grant starts or expires. What was used in a
span is taken from the grants that hold in it, in order; what no grant covers was paid by plain
credit or is owed. So the answer depends on the ledger alone and not on when it is asked.
"""

import itertools
from collections.abc import Callable, Sequence

from headrace.spec.grants import Grant

Used = Callable[[float, float], int]  # nano-dollars of what was used in [since, until)


def change_points(grants: Sequence[Grant], until_s: float) -> list[float]:
    """The bounds of the spans up to `until_s`, in order."""
    points = {grant.start_time for grant in grants}
    points |= {grant.expire_time for grant in grants if grant.expire_time is not None}
    return sorted({point for point in points if point < until_s} | {until_s})


def left_of(grants: Sequence[Grant], used: Used, until_s: float) -> dict[str, int]:
    """Nano-dollars left of each grant at `until_s`, by id; an expired one keeps what was left."""
    left = {grant.id: grant.amount_nanousd for grant in grants if grant.start_time <= until_s}
    points = change_points(grants, until_s)
    for since_s, span_end_s in itertools.pairwise(points):
        owed = used(since_s, span_end_s)
        for grant in in_order(grants, since_s):
            taken = min(owed, left[grant.id])
            left[grant.id] -= taken
            owed -= taken
    return left


def in_order(grants: Sequence[Grant], time_s: float) -> list[Grant]:
    """The grants that hold at a moment, the one that is used first before the others."""
    held = [
        grant for grant in grants if grant.start_time <= time_s and not (has_expired(grant, time_s))
    ]
    never = float("inf")
    return sorted(
        held,
        key=lambda grant: (
            grant.priority,
            never if grant.expire_time is None else grant.expire_time,
            grant.start_time,
            grant.id,
        ),
    )


def has_expired(grant: Grant, time_s: float) -> bool:
    """Whether a grant is over at a moment."""
    return grant.expire_time is not None and grant.expire_time <= time_s
