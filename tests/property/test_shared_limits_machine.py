"""Several gateways on one limit, answers that get lost, crashes and days that end: never overrun.

The slow, obvious model adds up what was settled in each window, as the ledger would.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import PaymentRequired, RateLimited
from headrace.ledger.admission import settle_reservation
from headrace.ledger.lease_keeper import trusted_s
from headrace.ledger.reservation import (
    Outcome,
    Reservation,
    Settlement,
    TokenUsage,
    UsageSource,
)
from headrace.ledger.scopes import ScopeLimits, scope_ids
from headrace.ledger.shared_admission import SharedAdmission
from headrace.ledger.shared_limiter import Lack
from headrace.sim.clock import ManualClock
from headrace.sim.memory_limits import MemoryLimits
from headrace.spec.limits import CalendarPeriod, Limits
from headrace.spec.prices import Price, PriceVersion
from headrace.storage.lease_exchange import Answers, Exchange

price = PriceVersion(
    "prb",
    Price(
        input_nanousd_per_million=1_000_000,
        cached_input_nanousd_per_million=1_000_000,
        output_nanousd_per_million=1_000_000,
    ),
)
ids = scope_ids("ten_a", "prj_a", "key_a", "m")
day_tokens, minute_tokens, rolling_nanousd, slots, credit = 2_000, 500, 900, 6, 6_000
rolling_s = 3_600
limits = ScopeLimits(
    project=Limits(budget_nanousd=rolling_nanousd, budget_period=rolling_s),
    key=Limits(
        tokens_per_minute=minute_tokens,
        tokens_per_period=day_tokens,
        period=CalendarPeriod.DAY,
        concurrent_requests=slots,
    ),
)


@dataclass
class Gateway:
    """One gateway with a journal of settlements, most of which the ledger has not booked."""

    name: str
    admission: SharedAdmission
    running: dict[str, Reservation] = field(default_factory=dict)
    journal: list[Settlement] = field(default_factory=list)


class World:
    """Gateways, their store, and the truth."""

    def __init__(self, seed: int, gateway_count: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryLimits(self.clock.wall_s)
        self.store.balances["ten_a"] = credit
        self.debits = 0
        self.number = 0
        self.minute_tokens: dict[int, int] = defaultdict(int)  # as admitted, corrected within it
        self.settled: list[tuple[float, int, int]] = []  # time, tokens, nanousd
        self.admitted_s: dict[str, int] = {}
        self.posted: dict[str, int] = defaultdict(int)
        self.heard_s: dict[str, float] = {}
        self.slots_hold = True
        self.gateways = [self.start(f"gateway{number}") for number in range(gateway_count)]

    def start(self, name: str, old: Gateway | None = None) -> Gateway:
        admission = SharedAdmission(self.clock, name)
        gateway = Gateway(name, admission, journal=old.journal if old else [])
        self.heard_s[name] = self.clock.wall_s()
        booked = len(gateway.journal)
        admission.begin(self.store.begin(name), booked)
        admission.load({"ten_a": 0}, booked, {"ten_a": (credit, self.debits)})
        for sequence, settlement in enumerate(gateway.journal, 1):
            admission.replayed(settlement, sequence)
        for reservation in (old.running if old else {}).values():
            settlement = self.settlement(reservation, 1)
            gateway.journal.append(settlement)
            self.count(settlement)
            admission.replayed(settlement, len(gateway.journal))
        return gateway

    def settlement(self, reservation: Reservation, used: int) -> Settlement:
        return settle_reservation(
            reservation, TokenUsage(used, 0, 0), Outcome.FAILED, UsageSource.RECOVERED,
            self.clock.wall_s(),
        )  # fmt: skip

    def reserve(self, gateway: Gateway, tokens: int) -> bool:
        self.number += 1
        request_id = f"r{self.number}"
        for _ in range(3):
            lacks = gateway.admission.lacks(
                ids, limits, price=price, credit_floor_nanousd=0,
                prompt_tokens_max=tokens, output_tokens_max=0,
            )  # fmt: skip
            if not lacks or not self.exchange(gateway, lacks):
                break
        try:
            reservation = gateway.admission.reserve(
                request_id=request_id, tenant_id="ten_a", project_id="prj_a", key_id="key_a",
                model="m", price=price, credit_floor_nanousd=0, prompt_tokens_max=tokens,
                output_tokens_max=0, limits=limits,
            )  # fmt: skip
        except (RateLimited, PaymentRequired):
            return False
        gateway.running[request_id] = reservation
        minute = int(self.clock.wall_s() // 60)
        self.admitted_s[request_id] = minute
        self.minute_tokens[minute] += tokens
        return True

    def settle(self, gateway: Gateway, used: int) -> None:
        if gateway.running:
            request_id = self.rng.choice(sorted(gateway.running))
            reservation = gateway.running.pop(request_id)
            used = min(used, reservation.prompt_tokens_max)
            settlement = gateway.admission.settle(
                reservation, TokenUsage(used, 0, 0), Outcome.FINISHED
            )
            gateway.journal.append(settlement)
            gateway.admission.journaled(request_id, len(gateway.journal))
            self.count(settlement)
            minute = self.admitted_s[request_id]
            if minute == int(self.clock.wall_s() // 60):
                self.minute_tokens[minute] += used - reservation.prompt_tokens_max

    def count(self, settlement: Settlement) -> None:
        tokens = settlement.usage.prompt_tokens
        amount = settlement.amount_nanousd or 0
        self.settled.append((settlement.settle_time, tokens, amount))

    def exchange(self, gateway: Gateway, lacks: Iterable[Lack] = ()) -> bool:
        said = gateway.admission.compose(len(gateway.journal), lacks)
        fate = self.rng.random()
        if fate < 0.1:
            return False  # it never arrived
        answers = self.ask(gateway, said)
        if fate < 0.2:
            return False  # the answer was lost
        gateway.admission.take(answers)
        self.heard_s[gateway.name] = self.clock.wall_s()
        return True

    def advance(self, seconds: float) -> None:
        """Time passes; a gateway that heard nothing for long trusts no lease that expires.

        Its slots may be given to others while its requests still run."""
        self.clock.advance(seconds)
        for gateway in self.gateways:
            if self.clock.wall_s() - self.heard_s[gateway.name] > trusted_s:
                gateway.admission.expire()
                self.slots_hold = self.slots_hold and not gateway.running

    def ask(self, gateway: Gateway, said: Exchange) -> Answers:
        answers = self.store.exchange(said)
        new = {answer.key for answer in answers.answers if answer.is_new}
        if not new:
            return answers
        asks = tuple(
            msgspec.structs.replace(ask, has_base=True) for ask in said.asks if ask.key in new
        )
        more = self.store.exchange(gateway.admission.next_operation(said, asks))
        known = {answer.key: answer for answer in (*answers.answers, *more.answers)}
        return Answers(more.time_s, tuple(known.values()))

    def book(self, gateway: Gateway) -> None:
        """The shipper: everything of the journal is in the ledger."""
        total = sum(amount for _, _, amount in self.settled)
        booked = sum(entry.amount_nanousd or 0 for one in self.gateways for entry in one.journal)
        assert booked == total
        mine = sum(entry.amount_nanousd or 0 for entry in gateway.journal)
        posted = self.posted[gateway.name]
        self.debits += mine - posted
        self.posted[gateway.name] = mine
        self.store.balances["ten_a"] = credit - self.debits
        gateway.admission.load(
            {"ten_a": credit - self.debits}, len(gateway.journal), {"ten_a": (credit, self.debits)}
        )

    def check(self) -> None:
        now_s = self.clock.wall_s()
        assert self.minute_tokens[int(now_s // 60)] <= minute_tokens
        running = [one for gateway in self.gateways for one in gateway.running.values()]
        held = sum(one.prompt_tokens_max for one in running)
        days: dict[int, int] = defaultdict(int)
        for settle_s, tokens, _ in self.settled:
            days[int(settle_s // 86_400)] += tokens
        assert all(tokens <= day_tokens for tokens in days.values())
        assert days[int(now_s // 86_400)] + held <= day_tokens
        recent = sum(amount for settle_s, _, amount in self.settled if settle_s > now_s - rolling_s)
        assert recent + sum(one.amount_nanousd for one in running) <= rolling_nanousd
        assert len(running) <= slots or not self.slots_hold
        spent = sum(amount for _, _, amount in self.settled)
        assert spent + sum(one.amount_nanousd for one in running) <= credit


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 4))
def test_nothing_is_overrun_whatever_gets_lost(seed: int, gateway_count: int) -> None:
    world = World(seed, gateway_count)
    rng = world.rng
    for _ in range(150):
        position = rng.randrange(gateway_count)
        gateway = world.gateways[position]
        what = rng.random()
        if what < 0.45:
            world.reserve(gateway, rng.choice([1, 20, 60, 150]))
        elif what < 0.75:
            world.settle(gateway, rng.choice([0, 5, 60, 150]))
        elif what < 0.85:
            world.exchange(gateway)
        elif what < 0.9:
            world.book(gateway)
        elif what < 0.93:
            world.gateways[position] = world.start(gateway.name, gateway)
        else:
            world.advance(rng.choice([0.3, 5.0, 31.0, 700.0, 40_000.0]))
        world.check()
