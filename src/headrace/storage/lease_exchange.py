"""How several gateways share one limit: what each leases of it, and the rule that none is overrun.

    used in the window + every gateway's lease  <=  capacity        (credit: the balance)

A lease is what a gateway may still use without asking. Using turns lease into use, which a gateway
reports later; so the sum above does not change by it, and only a grant can raise it. A grant is
checked against every window from the asking gateway's on, so that clocks that differ harm nobody.

Whatever a gateway says is absolute (its lease) or numbered (its report of use), so that it may
repeat a question whose answer was lost: an older question that arrives late is refused, and a
report counts once. `grant` is the whole rule; stores keep the numbers.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Protocol

import msgspec

slice_divisor = 8  # no gateway takes more of what is left than this part of it in advance
lease_lifetime_s = 60.0  # of minute limits and slots, of a gateway that is not heard of
marker_window = -1  # a use of 0 there says that what the ledger knew is in the uses


class LimitKind(IntEnum):
    """How a limit counts."""

    CALENDAR = 0  # the most of any window since the asker's
    ROLLING = 1  # the sum of the windows since the oldest that counts
    SLOTS = 2  # nothing but leases
    CREDIT = 3  # leases against the tenant's balance


class Use(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway used, or gave back, of a limit in a window."""

    key: str
    window: int
    amount: int


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway wants of a limit."""

    key: str
    kind: LimitKind
    capacity: int  # of credit: what is added to the balance; a floor is subtracted
    oldest_window: int
    committed: int  # what it keeps in any case of what it has
    need: int = 0  # more, for requests that wait
    spare: int = 0  # more, if there is plenty
    expires: bool = False  # the leases of a silent gateway do not count
    has_base: bool = True  # False: answer `is_new` if nobody has said what the ledger knows
    base: tuple[tuple[int, int], ...] = ()  # window and amount, if nobody has said it yet
    kept_since: int = 0  # older windows are forgotten
    tenant_id: str = ""  # of credit
    credits: int = 0  # all that the tenant was ever credited and debited, as the gateway read it
    debits: int = 0


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of an ask."""

    key: str
    lease: int
    room: int  # that nobody has leased, after this
    used: int
    others: int  # the other gateways' leases
    is_new: bool = False
    # Of a rolling limit that has less than was needed: what is used by window, the oldest first,
    # so that the asker can tell when enough of it is forgotten; as many as a period has.
    windows: tuple[tuple[int, int], ...] = ()


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a gateway says at once; all of it happens, or nothing."""

    gateway_id: str
    operation: int  # grows with each exchange
    report: int  # of `uses`; the same number says that it is the same report
    sequence: int  # of its journal: settlements up to here are in its reports
    uses: tuple[Use, ...] = ()
    asks: tuple[Ask, ...] = ()


class Answers(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an exchange."""

    time_s: float  # the store's
    answers: tuple[Answer, ...]


class Standing(msgspec.Struct, frozen=True):
    """What a store knows of a gateway that starts."""

    time_s: float
    operation: int = 0
    report: int = 0
    sequence: int | None = None  # None: it was never here
    leases: Mapping[str, int] = {}


class SharedLimits(Protocol):
    """Where the leases are kept; synchronous. Raises Unavailable while it is away."""

    def begin(self, gateway_id: str) -> Standing:
        """What is known of a gateway; call it before anything else at a start."""
        ...

    def exchange(self, said: Exchange) -> Answers:
        """Take reports and leases, and grant what there is; Conflict if `said` comes too late."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def used_of(ask: Ask, uses: Iterable[tuple[int, int]]) -> int:
    """What counts of a limit's uses, given as window and amount."""
    counted = [amount for window, amount in uses if window >= max(0, ask.oldest_window)]
    if ask.kind is LimitKind.CALENDAR:
        return max(counted, default=0)
    return sum(counted) if ask.kind is LimitKind.ROLLING else 0


def grant(ask: Ask, capacity: int, uses: Iterable[tuple[int, int]], others: int) -> Answer:
    """The lease that an ask gets: what it has committed, and as much more as there is.

    `uses` are the limit's, as window and amount; `others` is what others lease."""
    uses = list(uses)
    used = used_of(ask, uses)
    room = max(0, capacity - used - others - ask.committed)
    extra = min(room, max(ask.need, min(ask.need + ask.spare, room // slice_divisor)))
    windows: tuple[tuple[int, int], ...] = ()
    if ask.kind is LimitKind.ROLLING and extra < ask.need:
        windows = tuple(sorted(each for each in uses if each[0] >= max(0, ask.oldest_window)))
    return Answer(ask.key, ask.committed + extra, room - extra, used, others, windows=windows)
