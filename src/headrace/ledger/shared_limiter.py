"""The limits of one of several gateways: what it leases of each, instead of what everybody uses.

It answers like `Limiter`, from leases alone, so that admission stays one step that never waits.
Windows are those of the shared store's clock.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.ledger.history import PastUse
from headrace.ledger.leased_limit import LeasedLimit
from headrace.ledger.limits import (
    Hold,
    Limiter,
    MinuteRoom,
    MinuteStanding,
    Room,
    Taken,
    lower,
    remaining_of,
)
from headrace.ledger.refusals import Refusal, refusal_error, settle_retry_s
from headrace.ledger.scopes import Need, ScopeId, ScopeLimits, scope_ids
from headrace.ledger.shared_keys import KeyedLimit, Measure, keyed_limits, limit_of_key
from headrace.ledger.windows import Calendar, buckets_per_period, forgotten_window
from headrace.spec.limits import CalendarPeriod
from headrace.spec.settlements import Settlement
from headrace.storage.lease_exchange import LimitKind

answer_age_s_max = 0.25  # an interval of `lease_keeper`; what is idle elsewhere is free by then


class Lack(NamedTuple):
    """A limit of which a request needs more than is leased."""

    limit: KeyedLimit
    amount: int  # that the request needs in all


class Left(Enum):
    """Where more of a limit may come from."""

    ENOUGH = "enough"  # the store has it
    WITH_OTHERS = "with others"  # gateways that may give some of it back
    NOTHING = "nothing"


class SharedLimiter(Limiter):
    """Leases by limit; `SharedAdmission` calls it under its lock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._clock = clock
        self._offset_s = clock.wall_s() - clock.monotonic_s()
        self.leased: dict[str, LeasedLimit] = {}

    def calendar(self) -> Calendar:
        """Now, by the store's clock."""
        return self._now()

    def set_time(self, time_s: float) -> None:
        """Take the store's time; this machine's wall clock counts for nothing from then on."""
        self._offset_s = time_s - self._clock.monotonic_s()

    def begin(self, leases: Mapping[str, int]) -> None:
        """Take the leases that an earlier process of this gateway left.

        What it had of the minute counts as used, because nobody knows better; what it had of
        slots is free, because nothing of it runs any more."""
        calendar = self._now()
        for key, amount in leases.items():
            limit = limit_of_key(key)
            leased = self.leased[key] = LeasedLimit(limit, amount)
            if limit.is_of_minute:
                leased.fresh[limit.window(calendar)] = amount

    def lacks(self, ids: tuple[ScopeId, ...], limits: ScopeLimits, need: Need) -> list[Lack]:
        """What a request needs and is not leased."""
        calendar = self._now()
        return [
            Lack(limit, amount)
            for limit in keyed_limits(ids, limits)
            if (amount := limit.measure.of(need)) > self.state(limit).idle(calendar)
        ]

    def outdated(self, limits: Iterable[KeyedLimit]) -> list[Lack]:
        """The limits of which the store said something, a while ago; nothing more is needed."""
        now_s = self._now().now_s
        return [
            Lack(limit, 0)
            for limit in limits
            if (leased := self.state(limit)).answer is not None
            and now_s - leased.answer_s > answer_age_s_max
        ]

    def state(self, limit: KeyedLimit) -> LeasedLimit:
        """The numbers of a limit, with the capacity of now."""
        found = self.leased.get(limit.key)
        if found is None:
            found = self.leased[limit.key] = LeasedLimit(limit)
        elif found.limit != limit:
            found.change(limit)
        return found

    def reserve(self, ids: tuple[ScopeId, ...], limits: ScopeLimits, need: Need) -> Hold:
        """As `Limiter.reserve`, out of leases."""
        calendar = self._now()
        wanted = [(limit, limit.measure.of(need)) for limit in keyed_limits(ids, limits)]
        refused = [
            self._refusal(self.state(limit), amount, calendar)
            for limit, amount in wanted
            if amount > self.state(limit).idle(calendar)
        ]
        if refused:
            raise refusal_error(max(refused, key=lambda found: found.frees_at_s))
        taken = tuple(
            Taken(limit.key, amount, self.state(limit).take(amount, calendar))
            for limit, amount in wanted
        )
        return Hold((), calendar.minute_s, need, taken)

    def settle(self, hold: Hold, input_tokens: int, output_tokens: int, nanousd: int) -> None:
        """As `Limiter.settle`."""
        calendar = self._now()
        used = Need(input_tokens, output_tokens, nanousd)
        for taken in hold.taken:
            leased = self.leased[taken.key]
            leased.end(taken.amount, taken.window, leased.limit.measure.of(used), calendar)

    def cancel(self, hold: Hold) -> None:
        """As `Limiter.cancel`."""
        calendar = self._now()
        for taken in hold.taken:
            self.leased[taken.key].end(taken.amount, taken.window, 0, calendar)

    def restore(self, settlement: Settlement) -> None:
        """Count a settlement that no report contains, in the limits that this gateway leases.

        Its minute limits are used up by `begin` already."""
        calendar = self._now()
        usage = settlement.usage
        used = Need(usage.prompt_tokens, usage.completion_tokens, settlement.amount_nanousd or 0)
        ids = scope_ids(
            settlement.tenant_id, settlement.project_id, settlement.key_id, settlement.model
        )
        for leased in self.leased.values():
            limit = leased.limit
            if limit.period is not None and limit.scope_id in ids:
                past = Calendar(settlement.settle_time)
                window = min(limit.window(past), limit.window(calendar))
                amount = limit.measure.of(used)
                leased.fresh[window] = leased.fresh.get(window, 0) + amount

    def load(self, history: Iterable[PastUse]) -> None:
        """The shared store knows better."""

    def expire(self) -> None:
        """The store was not reached for so long that it has forgotten what expires."""
        for leased in self.leased.values():
            if leased.limit.expires:
                leased.expire()

    def room(self, ids: tuple[ScopeId, ...], limits: ScopeLimits) -> Room:
        """As `Limiter.room`, as far as the store has told; a limit not asked for is wide open."""
        calendar = self._now()
        tokens: int | None = None
        output_tokens: int | None = None
        nanousd: int | None = None
        for limit in keyed_limits(ids, limits):
            leased = self.state(limit)
            answer = leased.known(calendar)
            if answer is None:
                continue
            left = leased.idle(calendar) + answer.room
            if limit.measure is Measure.TOKENS:
                tokens = lower(tokens, left)
            elif limit.measure is Measure.OUTPUT:
                output_tokens = lower(output_tokens, left)
            elif limit.measure is Measure.NANOUSD:
                nanousd = lower(nanousd, left)
        return Room(tokens, output_tokens, nanousd)

    def standing(self, ids: tuple[ScopeId, ...], limits: ScopeLimits) -> MinuteStanding:
        """As `Limiter.standing`, as far as the store has told."""
        calendar = self._now()
        requests: list[MinuteRoom] = []
        tokens: list[MinuteRoom] = []
        for limit in keyed_limits(ids, limits):
            if limit.is_of_minute:
                leased = self.state(limit)
                answer = leased.known(calendar)
                left = limit.capacity - leased.unreported(calendar)
                if answer is not None:
                    left = leased.idle(calendar) + answer.room
                left = max(0, left)
                room = MinuteRoom(limit.capacity, left)
                (requests if limit.measure is Measure.REQUESTS else tokens).append(room)
        return MinuteStanding(
            min(requests, key=remaining_of, default=None),
            min(tokens, key=remaining_of, default=None),
            calendar.minute_end_s - calendar.now_s,
        )

    def forget_idle(self) -> None:
        """Drop the limits of which nothing is held; what the store said of them is old by then."""
        for key in [key for key, leased in self.leased.items() if leased.is_forgettable()]:
            del self.leased[key]

    def _refusal(self, leased: LeasedLimit, amount: int, calendar: Calendar) -> Refusal:
        limit, answer = leased.limit, leased.known(calendar)
        used = leased.unreported(calendar) + (answer.used if answer else 0)
        reserved = leased.held + (answer.others if answer else 0)
        windows = answer.windows if answer else ()
        excess = used + amount - limit.capacity
        return Refusal(
            limit.scope,
            limit.name,
            limit.capacity,
            used,
            reserved,
            amount,
            reset_s(limit, calendar, windows, excess),
        )

    def _now(self) -> Calendar:
        self._calendar.advance(self._clock.monotonic_s() + self._offset_s)
        return self._calendar


def reset_s(
    limit: KeyedLimit,
    calendar: Calendar,
    windows: Iterable[tuple[int, int]],
    excess: int,
) -> float:
    """Seconds until the window ends; of a rolling one, until so much of its use is forgotten.

    Where nothing has to be forgotten, a settlement or another gateway makes the room. What the
    store told nothing of counts as used now."""
    if limit.kind is LimitKind.SLOTS:
        return settle_retry_s
    if isinstance(limit.period, int):
        if excess <= 0:
            return settle_retry_s
        frees = forgotten_window(limit.window(calendar))
        for number, amount in windows:
            excess -= amount
            if excess <= 0:
                frees = forgotten_window(number)
                break
        return max(0.0, frees * limit.period / buckets_per_period - calendar.now_s)
    if limit.period is None:
        return calendar.minute_end_s - calendar.now_s
    is_day = limit.period is CalendarPeriod.DAY
    return (calendar.day_end_s if is_day else calendar.month_end_s) - calendar.now_s
