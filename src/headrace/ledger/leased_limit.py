"""One limit as one gateway sees it: its lease, what of it is held and used, and what it reports.

    idle = lease - held - used and not reported yet

A limit of the minute is used at admission, so what a request gives back is free within that minute
only: it is subtracted from the minute's use. Every other limit holds the worst case while a request
runs, and is used at settlement. Pure; `SharedLimiter` has many of these.
"""

from headrace.ledger.shared_keys import KeyedLimit
from headrace.ledger.windows import Calendar
from headrace.storage.lease_exchange import Answer, Ask, LimitKind, Use

answer_age_max = 100  # exchanges; refusals and headers tell what the store said last


class LeasedLimit:
    """The numbers of one limit. `lease` does not contain the report that is under way."""

    __slots__ = (
        "age",
        "answer",
        "answer_s",
        "asked_capacity",
        "asked_window",
        "fresh",
        "held",
        "lease",
        "limit",
        "need",
        "report",
        "running",
        "spent",
    )

    def __init__(self, limit: KeyedLimit, lease: int = 0) -> None:
        self.limit = limit
        self.lease = lease
        self.held = 0
        self.fresh: dict[int, int] = {}  # used by window, not reported
        self.report: dict[int, int] = {}  # used by window, in the report under way
        self.need = 0  # of the requests that wait for more
        self.spent = 0  # since the last exchange; what the next interval may need
        self.answer: Answer | None = None
        self.answer_s = 0.0  # when it came, by the store's clock
        self.asked_capacity = limit.capacity  # of the last ask
        self.asked_window = 0
        self.age = 0  # exchanges since the answer
        self.running = 0  # requests that took of it

    def idle(self, calendar: Calendar) -> int:
        """What may still be used without asking."""
        window = self.limit.window(calendar)
        used = sum(
            amount if of == window and self.limit.is_of_minute else max(0, amount)
            for of, amount in self.fresh.items()
        )
        return self.lease - self.held - used

    def unreported(self, calendar: Calendar) -> int:
        """What was used of the present window and the store has not heard."""
        oldest = self.limit.oldest_window(calendar)
        return sum(amount for window, amount in self.fresh.items() if window >= oldest)

    def take(self, amount: int, calendar: Calendar) -> int:
        """Set an amount aside and return the window that it counts in; the caller saw `idle`."""
        window = self.limit.window(calendar)
        if self.limit.is_of_minute:
            self.fresh[window] = self.fresh.get(window, 0) + amount
        else:
            self.held += amount
        self.spent += amount
        self.running += 1
        return window

    def end(self, taken: int, window: int, used: int, calendar: Calendar) -> None:
        """A request ends that took `taken` in `window` and used `used`."""
        present = self.limit.window(calendar)
        self.running -= 1
        if self.limit.is_of_minute:
            if window == present:
                self.fresh[window] = self.fresh.get(window, 0) + used - taken
            return
        self.held -= taken
        if self.limit.kind in (LimitKind.CALENDAR, LimitKind.ROLLING) and used:
            self.fresh[present] = self.fresh.get(present, 0) + used

    def known(self, calendar: Calendar) -> Answer | None:
        """What the store said last; None if that is of another window, or of another limit.

        A rolling window moves all the time, and what was said of it is nearly true."""
        if self.asked_capacity != self.limit.capacity:
            return None
        is_cut = self.limit.kind is LimitKind.CALENDAR
        return None if is_cut and self.asked_window != self.limit.window(calendar) else self.answer

    def change(self, limit: KeyedLimit) -> None:
        """The limit as it is set now; of one that was lowered nothing is spent without asking."""
        is_lower = limit.capacity < self.limit.capacity
        self.limit = limit
        if is_lower:
            self.expire()

    def expire(self) -> None:
        """The store has forgotten this lease: keep what runs or is used, and nothing to spend."""
        self.lease = self.held + sum(max(0, amount) for amount in self.fresh.values())

    def is_dirty(self, calendar: Calendar) -> bool:
        """Whether the store should hear of it: uses, or a lease that lies idle."""
        if self.fresh or self.report or self.need:
            return True
        return self.idle(calendar) > self.spent

    def is_forgettable(self) -> bool:
        """Whether it holds nothing, and what the store said of it is old."""
        if self.running or self.lease or self.held or self.fresh or self.report or self.need:
            return False
        return self.age > answer_age_max

    def start_report(self) -> None:
        """Move what was used into the report; its lease is the store's to turn into use."""
        self.report, self.fresh = self.fresh, {}
        self.lease -= sum(max(0, amount) for amount in self.report.values())

    def uses(self) -> list[Use]:
        """What the report under way says."""
        return [Use(self.limit.key, window, amount) for window, amount in self.report.items()]

    def ask(self, calendar: Calendar, credits_nanousd: int, debits_nanousd: int) -> Ask:
        """Keep what is committed and what the next interval needs; give back the rest.

        The amounts are all that a tenant was ever credited and debited, for its credit."""
        limit = self.limit
        committed = self.held + sum(max(0, amount) for amount in self.fresh.values())
        idle = max(0, self.lease - committed)
        kept = min(idle, max(self.spent, self.need))
        self.lease = committed + kept
        self.asked_capacity, self.asked_window = limit.capacity, limit.window(calendar)
        return Ask(
            key=limit.key,
            kind=limit.kind,
            capacity=limit.capacity,
            oldest_window=limit.oldest_window(calendar),
            committed=self.lease,
            need=max(0, self.need - kept),
            spare=max(0, self.spent - kept),
            expires=limit.expires,
            has_base=False,
            kept_since=limit.kept_since(calendar),
            tenant_id=limit.tenant_id,
            credits=credits_nanousd,
            debits=debits_nanousd,
        )

    def take_answer(self, answer: Answer, time_s: float) -> None:
        """The store has taken the report and granted a lease at its time `time_s`."""
        self.report = {}
        self.lease = answer.lease
        self.need = 0
        self.spent = 0
        self.answer, self.answer_s = answer, time_s
        self.age = 0
        if self.limit.capacity < self.asked_capacity:  # it was lowered meanwhile
            self.expire()
