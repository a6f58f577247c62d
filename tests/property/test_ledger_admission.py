"""Spend never exceeds credit, whatever the order of requests, shipping, snapshots and crashes.

The model is slow and obvious: it knows every credit, every settlement and every running request
of a tenant, at any moment. `Admission` only sees snapshots, some of them old.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.errors import PaymentRequired
from headrace.ledger.admission import Admission, settle_reservation
from headrace.ledger.reservation import (
    Outcome,
    Reservation,
    Settlement,
    TokenUsage,
    UsageSource,
)
from headrace.sim.clock import ManualClock
from headrace.spec.prices import Price, PriceVersion
from headrace.storage import LedgerSnapshot

journal_id = "jrn"
tenants = ("ten_a", "ten_b")
price = PriceVersion(
    "prb",
    Price(
        input_nanousd_per_million=2_500_000,
        cached_input_nanousd_per_million=500_000,
        output_nanousd_per_million=7_500_000,
    ),
)


class AdmissionMachine(RuleBasedStateMachine):
    """One gateway's admission between its journal and the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.credits = dict.fromkeys(tenants, 0)
        self.journal: list[Settlement] = []  # sequence = index + 1
        self.posted = 0  # records that the ledger has taken
        self.running: dict[str, Reservation] = {}
        self.settled: dict[str, Settlement] = {}  # not in the journal yet
        self.snapshots: list[LedgerSnapshot] = []
        self.count = 0

    @initialize(floor=st.sampled_from([-100, 0, 50]))
    def start(self, floor: int) -> None:
        self.floor = floor
        self.admission = Admission(self.clock)

    def spent(self, tenant_id: str) -> int:
        everything = [*self.journal, *self.settled.values()]
        return sum(item.amount_nanousd or 0 for item in everything if item.tenant_id == tenant_id)

    def free(self, tenant_id: str) -> int:
        held = sum(
            item.amount_nanousd for item in self.running.values() if item.tenant_id == tenant_id
        )
        return self.credits[tenant_id] - self.spent(tenant_id) - held

    def take_snapshot(self) -> LedgerSnapshot:
        balances = dict(self.credits)
        for item in self.journal[: self.posted]:
            balances[item.tenant_id] -= item.amount_nanousd or 0
        return LedgerSnapshot(balances, {journal_id: self.posted})

    @rule(tenant_id=st.sampled_from(tenants), amount=st.integers(1, 500))
    def credit(self, tenant_id: str, amount: int) -> None:
        self.credits[tenant_id] += amount

    @rule(
        tenant_id=st.sampled_from(tenants),
        prompt=st.integers(0, 30),
        output=st.integers(0, 30),
    )
    def reserve(self, tenant_id: str, prompt: int, output: int) -> None:
        self.count += 1
        request_id = f"r{self.count}"
        free = self.free(tenant_id)
        try:
            reservation = self.admission.reserve(
                request_id=request_id,
                tenant_id=tenant_id,
                project_id="p",
                key_id="k",
                model="m",
                price=price,
                credit_floor_nanousd=self.floor,
                prompt_tokens_max=prompt,
                output_tokens_max=output,
            )
        except PaymentRequired as refused:
            refusal: dict[str, object] = refused.fields
        else:
            self.running[request_id] = reservation
            return
        believed = refusal["available_nanousd"]
        assert isinstance(believed, int)
        assert believed <= free - self.floor

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        reservation = self.running.pop(request_id)
        prompt = data.draw(st.integers(0, reservation.prompt_tokens_max + 5))
        usage = TokenUsage(
            prompt,
            data.draw(st.integers(0, prompt)),
            data.draw(st.integers(0, reservation.output_tokens_max + 5)),
        )
        outcome = data.draw(st.sampled_from(Outcome))
        self.settled[request_id] = self.admission.settle(reservation, usage, outcome)

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def write_to_journal(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.settled)))
        self.journal.append(self.settled.pop(request_id))
        if data.draw(st.booleans()):  # the shipper may be faster than the gateway's next line
            self.posted = len(self.journal)
            self.load(self.take_snapshot())
        self.admission.journaled(request_id, len(self.journal))

    @precondition(lambda self: self.posted < len(self.journal))
    @rule(data=st.data())
    def ship(self, data: st.DataObject) -> None:
        self.posted = data.draw(st.integers(self.posted + 1, len(self.journal)))

    @rule()
    def read_balances(self) -> None:
        self.snapshots.append(self.take_snapshot())

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def deliver_balances(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.snapshots) - 1))
        self.load(self.snapshots.pop(position))

    @rule()
    def crash(self) -> None:
        """Running requests are settled at nothing; what was not in the journal is written."""
        self.journal += self.settled.values()
        self.settled = {}
        self.snapshots = []
        self.admission = Admission(self.clock)
        self.load(self.take_snapshot())
        for sequence, settlement in enumerate(self.journal, 1):
            self.admission.replayed(settlement, sequence)
        for reservation in self.running.values():
            settlement = settle_reservation(
                reservation, TokenUsage(), Outcome.FAILED, UsageSource.RECOVERED, 0.0
            )
            self.journal.append(settlement)
            self.admission.replayed(settlement, len(self.journal))
        self.running = {}

    @rule()
    def catch_up(self) -> None:
        """With everything shipped and a fresh snapshot, admission knows exactly what is free."""
        for request_id, settlement in self.settled.items():
            self.journal.append(settlement)
            self.admission.journaled(request_id, len(self.journal))
        self.settled = {}
        self.posted = len(self.journal)
        self.load(self.take_snapshot())
        for tenant_id in tenants:
            assert self.admission.available_nanousd(tenant_id) == self.free(tenant_id)

    def load(self, snapshot: LedgerSnapshot) -> None:
        self.admission.load(snapshot.balances_nanousd, snapshot.sequences[journal_id])

    @invariant()
    def no_tenant_is_below_its_floor(self) -> None:
        for tenant_id in tenants:
            assert self.free(tenant_id) >= min(self.floor, self.credits[tenant_id])

    @invariant()
    def admission_never_believes_in_more_than_there_is(self) -> None:
        for tenant_id in tenants:
            if hasattr(self, "admission"):
                assert self.admission.available_nanousd(tenant_id) <= self.free(tenant_id)


AdmissionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestAdmission = AdmissionMachine.TestCase
