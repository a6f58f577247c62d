"""Why a limit refuses a request, when it would not, and the error that says so."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from headrace.base.errors import HeadraceError, PaymentRequired, RateLimited
from headrace.base.money import format_usd
from headrace.ledger.scopes import Need, ScopeKind, ScopeState
from headrace.ledger.windows import Calendar, RollingUse
from headrace.spec.limits import CalendarPeriod, Limits, Period

settle_retry_s = 1.0  # when room is made by whatever running request ends next


class Refusal(NamedTuple):
    """One limit that a request does not fit in."""

    scope: ScopeKind
    limit_name: str
    limit: int
    used: int
    reserved: int  # the worst cases of what runs
    needed: int
    reset_s: float  # until the window ends, or enough of a rolling one is forgotten

    @property
    def retry_after_s(self) -> float | None:
        """After a settlement if that can be enough, else at reset; None: it never fits."""
        if self.needed > self.limit:
            return None
        if self.used + self.needed <= self.limit:
            return min(self.reset_s, settle_retry_s)
        return self.reset_s

    @property
    def frees_at_s(self) -> float:
        """When it makes sense to come back, for comparison."""
        return float("inf") if self.retry_after_s is None else self.retry_after_s


def refusals(
    scope: ScopeKind, limits: Limits, state: ScopeState, need: Need, calendar: Calendar
) -> Iterator[Refusal]:
    """Every limit of a scope that has no room for a request."""
    minute_left_s = calendar.minute_end_s - calendar.now_s
    both = need.input_tokens + need.output_tokens
    held_input, held_output = state.minute_held_input, state.minute_held_output
    minute = (
        ("requests_per_minute", limits.requests_per_minute, state.requests, 0, 1),
        (
            "tokens_per_minute",
            limits.tokens_per_minute,
            state.input_tokens + state.output_tokens,
            held_input + held_output,
            both,
        ),
        (
            "input_tokens_per_minute",
            limits.input_tokens_per_minute,
            state.input_tokens,
            held_input,
            need.input_tokens,
        ),
        (
            "output_tokens_per_minute",
            limits.output_tokens_per_minute,
            state.output_tokens,
            held_output,
            need.output_tokens,
        ),
    )
    for name, limit, counted, held, needed in minute:
        if limit is not None and counted + needed > limit:
            yield Refusal(scope, name, limit, counted - held, held, needed, minute_left_s)
    limit = limits.concurrent_requests
    if limit is not None and state.running >= limit:
        yield Refusal(scope, "concurrent_requests", limit, 0, state.running, 1, settle_retry_s)
    periods = (
        ("tokens_per_period", limits.tokens_per_period, limits.period, both),
        ("budget_nanousd", limits.budget_nanousd, limits.budget_period, need.amount_nanousd),
    )
    for name, limit, period, needed in periods:
        if limit is not None:
            is_money = name == "budget_nanousd"
            use = state.use(period, calendar.now_s)
            used = use.nanousd if is_money else use.tokens
            held = state.held_nanousd if is_money else state.held_tokens
            if used + held + needed > limit:
                excess = used + needed - limit
                tokens, nanousd = (0, excess) if is_money else (excess, 0)
                reset_s = period_reset_s(period, use, calendar, tokens, nanousd)
                yield Refusal(scope, name, limit, used, held, needed, reset_s)


def period_reset_s(
    period: Period,
    use: object,
    calendar: Calendar,
    tokens: int,
    nanousd: int,
) -> float:
    """Seconds until a calendar period ends, or until so much of a rolling one is forgotten."""
    if isinstance(use, RollingUse):
        # Where nothing has to be forgotten, a settlement makes the room.
        return use.seconds_until_free(calendar.now_s, tokens, nanousd) or settle_retry_s
    end_s = calendar.day_end_s if period is CalendarPeriod.DAY else calendar.month_end_s
    return end_s - calendar.now_s


def refusal_error(found: Refusal) -> HeadraceError:
    """The refusal as an answer: 402 for a budget, 429 for every other limit."""
    is_money = found.limit_name == "budget_nanousd"
    show = (lambda amount: f"${format_usd(amount)}") if is_money else str
    if found.retry_after_s is None:
        advice = "it alone asks for more than that; ask for less, or have the limit raised"
    else:
        advice = f"try again in {max(1, math.ceil(found.retry_after_s))} s"  # as Retry-After
    scope = found.scope.value.replace("_", " and ")
    message = (
        f"The limit {found.limit_name} of this {scope} is {show(found.limit)}: "
        f"{show(found.used)} are used, {show(found.reserved)} are set aside for running requests, "
        f"and this request may need {show(found.needed)}; {advice}."
    )
    error_type = PaymentRequired if is_money else RateLimited
    return error_type(
        message,
        retry_after_s=found.retry_after_s,
        scope=found.scope.value,
        limit_name=found.limit_name,
        limit=found.limit,
        used=found.used,
        reserved=found.reserved,
        needed=found.needed,
        reset_s=round(found.reset_s, 3),
    )
