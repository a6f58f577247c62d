"""No limit is ever overrun, and nothing is refused that fits, whatever the order and the restarts.

The model is slow and obvious: a list of every request with its times and tokens, summed anew for
each question. It knows the true minute of admission; after a restart the limiter knows only when a
request was settled, which may refuse more for the rest of that minute, and never less.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.errors import PaymentRequired, RateLimited
from headrace.ledger.admission import Admission
from headrace.ledger.history import PastUse
from headrace.ledger.reservation import Outcome, Reservation, Settlement, TokenUsage
from headrace.ledger.scopes import ScopeLimits, scope_ids, scope_kinds
from headrace.sim.clock import ManualClock
from headrace.spec.limits import CalendarPeriod, Limits, Period
from headrace.spec.prices import Price, PriceVersion

price = PriceVersion(
    "prb",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)
Caller = tuple[str, str, str, str]  # tenant, project, key, model
callers: tuple[Caller, ...] = (("ten_a", "prj_a", "key_a", "m"), ("ten_a", "prj_a", "key_b", "m"))
start_s = 1_798_761_600.0 - 3 * 3600  # the last hours of a month, and of a year
rolling_s = 6_400  # buckets of 100 s

small = st.none() | st.integers(0, 60)
periods: st.SearchStrategy[Period] = st.sampled_from(
    [CalendarPeriod.DAY, CalendarPeriod.MONTH, rolling_s]
)
some_limits = st.none() | st.builds(
    Limits,
    requests_per_minute=st.none() | st.integers(0, 6),
    tokens_per_minute=small,
    input_tokens_per_minute=small,
    output_tokens_per_minute=small,
    concurrent_requests=st.none() | st.integers(0, 4),
    tokens_per_period=st.none() | st.integers(0, 150),
    period=periods,
    budget_nanousd=st.none() | st.integers(0, 150),
    budget_period=periods,
)


@dataclass
class Request:
    """What the model knows of one admitted request; `settle_s` None while it runs."""

    ids: tuple[str, ...]
    request_id: str
    admit_s: float
    input_tokens: int
    output_tokens: int
    nanousd: int
    settle_s: float | None = None
    reservation: Reservation | None = None


def starts_of(time_s: float, period: Period) -> float:
    """The first moment that counts in a period, to the width of a rolling one's bucket."""
    if period is CalendarPeriod.DAY:
        return time_s - time_s % 86_400
    if period is CalendarPeriod.MONTH:
        return 1_796_083_200.0 if time_s < 1_798_761_600.0 else 1_798_761_600.0
    assert isinstance(period, int)
    bucket_s = period / 64
    return (time_s // bucket_s - 64) * bucket_s


class LimitMachine(RuleBasedStateMachine):
    """One gateway, its limits, and a world that restarts it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start_s)
        self.requests: list[Request] = []
        self.settlements: list[Settlement] = []
        self.restart_minute_s = -1.0

    @initialize(
        tenant=some_limits,
        project=some_limits,
        key=some_limits,
        model=some_limits,
        both=some_limits,
    )
    def start(self, **limits: Limits | None) -> None:
        self.limits = ScopeLimits(
            limits["tenant"], limits["project"], limits["key"], limits["model"], limits["both"]
        )
        self.admission = Admission(self.clock)
        self.admission.load_history(self.no_history())

    def no_history(self) -> list[PastUse]:
        """Makes the limiter count in the rolling period from the start, as a gateway's does."""
        return [PastUse(rolling_s, 0.0, scope_ids("", "", "", ""), 0, 0, 0, 0)]

    # The model ---------------------------------------------------------------------------------

    def broken(self, extra: Request | None) -> list[tuple[str, str]]:
        """Every limit that does not hold, were `extra` admitted now."""
        now_s = self.clock.wall_s()
        everything = self.requests + ([] if extra is None else [extra])
        ids_to_check = [scope_ids(*caller) for caller in callers] if extra is None else [extra.ids]
        found: list[tuple[str, str]] = []
        for ids in ids_to_check:
            for kind, scope_id, limits in zip(scope_kinds, ids, self.limits, strict=True):
                mine = [request for request in everything if scope_id in request.ids]
                if limits is not None:
                    uses = uses_of(mine, limits, now_s)
                    found += [
                        (kind.value, name) for name, (use, limit) in uses.items() if use > limit
                    ]
        return found

    @rule(
        caller=st.sampled_from(callers),
        input_tokens=st.integers(0, 20),
        output_tokens=st.integers(0, 20),
    )
    def reserve(self, caller: Caller, input_tokens: int, output_tokens: int) -> None:
        self.ask(caller, input_tokens, output_tokens)

    def ask(self, caller: Caller, input_tokens: int, output_tokens: int) -> Request | None:
        wanted = Request(
            scope_ids(*caller),
            f"r{len(self.requests)}",
            self.clock.wall_s(),
            input_tokens,
            output_tokens,
            input_tokens + output_tokens + 1,
        )
        tenant_id, project_id, key_id, model = caller
        refusal: dict[str, object] | None = None
        try:
            wanted.reservation = self.admission.reserve(
                request_id=wanted.request_id,
                tenant_id=tenant_id,
                project_id=project_id,
                key_id=key_id,
                model=model,
                price=price,
                credit_floor_nanousd=None,
                prompt_tokens_max=input_tokens,
                output_tokens_max=output_tokens,
                limits=self.limits,
            )
        except (RateLimited, PaymentRequired) as refused:
            refusal = refused.fields
        if refusal is None:
            self.requests.append(wanted)
            return wanted
        if self.restart_minute_s != self.clock.wall_s() // 60:
            assert (refusal["scope"], refusal["limit_name"]) in self.broken(wanted)
        return None

    @rule(
        caller=st.sampled_from(callers),
        input_tokens=st.integers(0, 10),
        output_tokens=st.integers(0, 10),
    )
    def use_up(self, caller: Caller, input_tokens: int, output_tokens: int) -> None:
        """One request after the other uses all that it may, until one is refused."""
        for _ in range(12):
            request = self.ask(caller, input_tokens, output_tokens)
            if request is None:
                return
            self.end(request, TokenUsage(input_tokens, 0, output_tokens))
            self.no_limit_is_overrun()

    def running(self) -> list[Request]:
        return [request for request in self.requests if request.settle_s is None]

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running()))
        usage = TokenUsage(
            data.draw(st.integers(0, request.input_tokens)),
            0,
            data.draw(st.integers(0, request.output_tokens)),
        )
        self.end(request, usage)

    def end(self, request: Request, usage: TokenUsage) -> None:
        assert request.reservation is not None
        settlement = self.admission.settle(request.reservation, usage, Outcome.FINISHED)
        self.admission.journaled(request.request_id, len(self.settlements) + 1)
        self.note(request, settlement)

    def note(self, request: Request, settlement: Settlement) -> None:
        request.input_tokens = settlement.usage.prompt_tokens
        request.output_tokens = settlement.usage.completion_tokens
        request.nanousd = settlement.amount_nanousd or 0
        request.settle_s = settlement.settle_time
        self.settlements.append(settlement)

    @rule(seconds=st.sampled_from([1, 20, 45, 60, 150, 3_000, 6_350, 6_550, 90_000]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Running requests are settled at what was last seen; some of the journal is shipped."""
        for request in self.running():
            assert request.reservation is not None
            settlement = self.admission.settle(request.reservation, TokenUsage(), Outcome.FAILED)
            self.note(request, settlement)
        shipped = data.draw(st.integers(0, len(self.settlements)))
        self.admission = Admission(self.clock)
        self.admission.load({}, shipped)
        history = self.no_history()
        for settlement in self.settlements[:shipped]:
            history += self.past_of(settlement)
        self.admission.load_history(history)
        for sequence, settlement in enumerate(self.settlements, 1):
            self.admission.replayed(settlement, sequence)
        self.restart_minute_s = self.clock.wall_s() // 60

    def past_of(self, settlement: Settlement) -> list[PastUse]:
        now_s, settle_s = self.clock.wall_s(), settlement.settle_time
        starts: list[tuple[Period | None, float]] = [(None, now_s - now_s % 60)]
        starts += [(period, starts_of(now_s, period)) for period in CalendarPeriod]
        starts += [(rolling_s, settle_s - settle_s % (rolling_s / 64))]
        ids = scope_ids(
            settlement.tenant_id, settlement.project_id, settlement.key_id, settlement.model
        )
        usage = settlement.usage
        return [
            PastUse(
                period,
                since_s,
                ids,
                1,
                usage.prompt_tokens,
                usage.completion_tokens,
                settlement.amount_nanousd or 0,
            )
            for period, since_s in starts
            if settle_s >= since_s
        ]

    @invariant()
    def no_limit_is_overrun(self) -> None:
        if hasattr(self, "admission"):
            assert self.broken(None) == []


def uses_of(mine: list[Request], limits: Limits, now_s: float) -> dict[str, tuple[int, int]]:
    """The use and the limit of every limit that there is, by its name."""
    minute = [request for request in mine if request.admit_s // 60 == now_s // 60]
    inputs = sum(request.input_tokens for request in minute)
    outputs = sum(request.output_tokens for request in minute)
    counted = {
        "requests_per_minute": len(minute),
        "tokens_per_minute": inputs + outputs,
        "input_tokens_per_minute": inputs,
        "output_tokens_per_minute": outputs,
        "concurrent_requests": sum(request.settle_s is None for request in mine),
        "tokens_per_period": sum(
            request.input_tokens + request.output_tokens
            for request in counting(mine, limits.period, now_s)
        ),
        "budget_nanousd": sum(
            request.nanousd for request in counting(mine, limits.budget_period, now_s)
        ),
    }
    return {
        name: (use, limit)
        for name, use in counted.items()
        if (limit := getattr(limits, name)) is not None
    }


def counting(mine: list[Request], period: Period, now_s: float) -> list[Request]:
    """The requests that run, and those that were settled in the period."""
    start_s = starts_of(now_s, period)
    return [r for r in mine if r.settle_s is None or r.settle_s >= start_s]


LimitMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestLimits = LimitMachine.TestCase
