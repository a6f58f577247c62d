"""Limits over the five scopes of a request: worst case reserved in all of them or in none.

    minute limits    a request's tokens count in the minute in which it was admitted
    periods, budgets a worst case counts while the request runs, in whichever period that is; what
                     was used counts in the period in which it was settled, as the ledger has it

`Admission` owns the one `Limiter` of a gateway and calls it under its lock. It does no I/O.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.ledger.history import PastUse
from headrace.ledger.refusals import Refusal, refusal_error, refusals
from headrace.ledger.scopes import (
    Need,
    ScopeId,
    ScopeLimits,
    ScopeState,
    scope_ids,
    scope_kinds,
)
from headrace.ledger.steady_time import SteadyTime
from headrace.ledger.windows import Calendar
from headrace.spec.limits import CalendarPeriod, Limits
from headrace.spec.settlements import Settlement

sweep_scopes = 6  # looked at a request; one more than it can add, so idle scopes go


class Hold(NamedTuple):
    """What a running request has reserved in its scopes."""

    states: tuple[ScopeState, ...]
    minute_s: int
    need: Need
    taken: tuple["Taken", ...] = ()  # of limits that several gateways share
    set_backs: int = 0  # of the calendar by then


class Taken(NamedTuple):
    """What a running request took of one shared limit."""

    key: str
    amount: int
    window: int


class Room(NamedTuple):
    """What the hard limits of a request's scopes leave; None: nothing limits it."""

    tokens: int | None = None  # input and output together
    output_tokens: int | None = None
    nanousd: int | None = None


class MinuteRoom(NamedTuple):
    """One minute limit and what is left of it."""

    limit: int
    remaining: int


class MinuteStanding(NamedTuple):
    """Where a caller stands in this minute, by the limits that leave it least."""

    requests: MinuteRoom | None
    tokens: MinuteRoom | None
    reset_s: float


class Limiter:
    """What every scope uses now; scopes that use nothing are forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._time = SteadyTime(clock)
        self._calendar = Calendar(self._time.now_s())
        self._states: dict[ScopeId, ScopeState] = {}
        self._sweep: deque[ScopeId] = deque()  # every scope once
        self._rolling: set[int] = set()  # the rolling periods that some limit has

    def watch(self, periods_s: Iterable[int]) -> None:
        """Count in these rolling periods from now on."""
        self._rolling.update(periods_s)

    def reserve(self, ids: tuple[ScopeId, ...], limits: ScopeLimits, need: Need) -> Hold:
        """Set a worst case aside in every scope; RateLimited or PaymentRequired, and nothing done.

        Of several limits in the way the error names the one that frees last."""
        calendar = self._now()
        states = self._states_of(ids)
        worst: Refusal | None = None
        for kind, own, state in zip(scope_kinds, limits, states, strict=True):
            if own is None:
                continue
            if own.rolling_periods_s:
                self.watch(own.rolling_periods_s)
            if own.alert_only:
                continue
            for found in refusals(kind, own, state, need, calendar):
                if worst is None or found.frees_at_s > worst.frees_at_s:
                    worst = found
        if worst is not None:
            raise refusal_error(worst)
        both = need.input_tokens + need.output_tokens
        for state in states:
            state.requests += 1
            state.input_tokens += need.input_tokens
            state.output_tokens += need.output_tokens
            state.minute_held_input += need.input_tokens
            state.minute_held_output += need.output_tokens
            state.running += 1
            state.held_tokens += both
            state.held_nanousd += need.amount_nanousd
        return Hold(states, calendar.minute_s, need, set_backs=calendar.set_backs)

    def settle(self, hold: Hold, input_tokens: int, output_tokens: int, nanousd: int) -> None:
        """Correct a hold to what was used; the rest is free at once."""
        calendar = self._now()
        for state in hold.states:
            self._end(state, hold, input_tokens, output_tokens)
            state.enter(calendar)
            state.book(
                calendar.now_s, calendar, input_tokens + output_tokens, nanousd, self._rolling
            )

    def cancel(self, hold: Hold) -> None:
        """Undo a hold as if it had never been."""
        self._now()
        for state in hold.states:
            self._end(state, hold, 0, 0)
            if self._is_of_this_minute(state, hold):
                state.requests -= 1

    def restore(self, settlement: Settlement) -> None:
        """Count a settlement of an earlier process that the ledger's history does not have.

        When it was admitted is not known any more: it counts in the minute of its settlement,
        which can only be too strict, for the rest of that minute."""
        calendar = self._now()
        usage = settlement.usage
        ids = scope_ids(
            settlement.tenant_id, settlement.project_id, settlement.key_id, settlement.model
        )
        for state in self._states_of(ids):
            if settlement.settle_time >= calendar.minute_s:
                state.requests += 1
                state.input_tokens += usage.prompt_tokens
                state.output_tokens += usage.completion_tokens
            state.book(
                settlement.settle_time,
                calendar,
                usage.prompt_tokens + usage.completion_tokens,
                settlement.amount_nanousd or 0,
                self._rolling,
            )

    def load(self, history: Iterable[PastUse]) -> None:
        """Take what the ledger knows; call once, before anything is reserved."""
        calendar = self._now()
        for past in history:
            if isinstance(past.period, int):
                self._rolling.add(past.period)
            for state in self._states_of(past.ids):
                load_past(state, past, calendar)

    def room(self, ids: tuple[ScopeId, ...], limits: ScopeLimits) -> Room:
        """What is left for one more request."""
        calendar = self._now()
        room = Room()
        for scope_id, own in zip(ids, limits, strict=True):
            if own is not None and not own.alert_only:
                room = narrowed(room, own, self._state(scope_id), calendar)
        return room

    def standing(self, ids: tuple[ScopeId, ...], limits: ScopeLimits) -> MinuteStanding:
        """The tightest minute limits of the scopes."""
        calendar = self._now()
        requests: list[MinuteRoom] = []
        tokens: list[MinuteRoom] = []
        for scope_id, own in zip(ids, limits, strict=True):
            if own is not None:
                state = self._state(scope_id)
                requests += minute_rooms((own.requests_per_minute, state.requests))
                tokens += minute_rooms(
                    (own.tokens_per_minute, state.input_tokens + state.output_tokens),
                    (own.input_tokens_per_minute, state.input_tokens),
                    (own.output_tokens_per_minute, state.output_tokens),
                )
        return MinuteStanding(
            min(requests, key=remaining_of, default=None),
            min(tokens, key=remaining_of, default=None),
            calendar.minute_end_s - calendar.now_s,
        )

    def time_s(self) -> float:
        """Now, as limits count it, in seconds since the Unix epoch."""
        return self._now().now_s

    def scope_count(self) -> int:
        """How many scopes take memory."""
        return len(self._states)

    def _is_of_this_minute(self, state: ScopeState, hold: Hold) -> bool:
        """Whether a request counts in the minute that a scope counts."""
        is_same = state.minute_s == hold.minute_s
        return is_same and hold.set_backs == self._calendar.set_backs

    def _end(self, state: ScopeState, hold: Hold, input_tokens: int, output_tokens: int) -> None:
        need = hold.need
        state.running -= 1
        state.held_tokens -= need.input_tokens + need.output_tokens
        state.held_nanousd -= need.amount_nanousd
        if self._is_of_this_minute(state, hold):
            state.input_tokens += input_tokens - need.input_tokens
            state.output_tokens += output_tokens - need.output_tokens
            state.minute_held_input -= need.input_tokens
            state.minute_held_output -= need.output_tokens

    def _now(self) -> Calendar:
        self._calendar.advance(self._time.now_s())
        return self._calendar

    def _states_of(self, ids: tuple[ScopeId, ...]) -> tuple[ScopeState, ...]:
        self._forget_idle()
        return tuple([self._state(scope_id) for scope_id in ids])

    def _state(self, scope_id: ScopeId) -> ScopeState:
        state = self._states.get(scope_id)
        if state is None:
            state = self._states[scope_id] = ScopeState(self._calendar)
            self._sweep.append(scope_id)
        else:
            state.enter(self._calendar)
        return state

    def _forget_idle(self) -> None:
        for _ in range(min(sweep_scopes, len(self._sweep))):
            scope_id = self._sweep.popleft()
            if self._states[scope_id].is_idle(self._calendar):
                del self._states[scope_id]
            else:
                self._sweep.append(scope_id)


def narrowed(room: Room, limits: Limits, state: ScopeState, calendar: Calendar) -> Room:
    """The room that one scope's limits leave of it."""
    tokens, output_tokens, nanousd = room
    if limits.tokens_per_minute is not None:
        counted = state.input_tokens + state.output_tokens
        tokens = lower(tokens, limits.tokens_per_minute - counted)
    if limits.output_tokens_per_minute is not None:
        left = limits.output_tokens_per_minute - state.output_tokens
        output_tokens = lower(output_tokens, left)
    if limits.tokens_per_period is not None:
        used = state.use(limits.period, calendar.now_s).tokens
        tokens = lower(tokens, limits.tokens_per_period - used - state.held_tokens)
    if limits.budget_nanousd is not None:
        spent = state.use(limits.budget_period, calendar.now_s).nanousd
        nanousd = lower(nanousd, limits.budget_nanousd - spent - state.held_nanousd)
    return Room(tokens, output_tokens, nanousd)


def minute_rooms(*limits: tuple[int | None, int]) -> list[MinuteRoom]:
    """What is left of each limit that there is, given (limit, use)."""
    return [MinuteRoom(limit, max(0, limit - used)) for limit, used in limits if limit is not None]


def remaining_of(room: MinuteRoom) -> int:
    """What is left."""
    return room.remaining


def lower(known: int | None, left: int) -> int:
    """The smaller of two bounds, of which the first may not exist; never below 0."""
    left = max(0, left)
    return left if known is None else min(known, left)


def load_past(state: ScopeState, past: PastUse, calendar: Calendar) -> None:
    """Add what was used before, unless its period has ended since it was read."""
    tokens = past.input_tokens + past.output_tokens
    if past.period is None:
        if past.since_s >= calendar.minute_s:
            state.requests += past.request_count
            state.input_tokens += past.input_tokens
            state.output_tokens += past.output_tokens
    elif isinstance(past.period, CalendarPeriod):
        use = state.day if past.period is CalendarPeriod.DAY else state.month
        if past.since_s >= use.start_s:
            use.tokens += tokens
            use.nanousd += past.nanousd
    else:
        state.book_rolling(past.period, past.since_s, calendar.now_s, tokens, past.nanousd)
