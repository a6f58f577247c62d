"""Money in a simulation: the real admission over balances in memory, and a ledger by request id.

Settlements travel to the ledger as the shipper sends them: late, and at least once.
"""

import random

from headrace.base.errors import PaymentRequired
from headrace.ledger.admission import Admission
from headrace.ledger.reservation import Outcome as LedgerOutcome
from headrace.ledger.reservation import Reservation, Settlement, TokenUsage
from headrace.sim.fleet.attempt import Attempt
from headrace.sim.fleet.event_loop import Loop
from headrace.sim.fleet.invariants import InvariantBroken, Invariants
from headrace.sim.fleet.request import Outcome, SimRequest
from headrace.spec.prices import Price, PriceVersion

ship_delay_s = 0.2
snapshot_interval_s = 1.0
price = PriceVersion(
    "prb_simulated",
    Price(
        input_nanousd_per_million=100_000_000,
        cached_input_nanousd_per_million=25_000_000,
        output_nanousd_per_million=400_000_000,
    ),
)


class Books:
    """Reservations, settlements and balances of the tenants of one simulation."""

    def __init__(
        self,
        loop: Loop,
        invariants: Invariants,
        rng: random.Random,
        *,
        credits_nanousd: list[int],
        duplicate_share: float,
    ) -> None:
        self._loop = loop
        self._invariants = invariants
        self._rng = rng
        self._duplicate_share = duplicate_share
        self._credits = credits_nanousd
        self._admission = Admission(loop, requests_max=1 << 30)
        self._open: dict[int, Reservation] = {}
        self._balances = {str(tenant): amount for tenant, amount in enumerate(credits_nanousd)}
        self._posted: set[str] = set()
        self._sequence = 0
        self._posted_sequence = 0
        self._next_snapshot_s = 0.0
        self._disk_free_s = 0.0
        self._admission.load(dict(self._balances), 0)

    def reserve(self, request: SimRequest) -> bool:
        """Set the worst case aside; False if the tenant's credit does not cover it."""
        try:
            reservation = self._admission.reserve(
                request_id=str(request.id),
                tenant_id=str(request.tenant),
                project_id="project",
                key_id="key",
                model=str(request.deployment),
                price=price,
                credit_floor_nanousd=0,
                prompt_tokens_max=request.prompt_tokens,
                output_tokens_max=request.max_tokens,
            )
        except PaymentRequired:
            return False
        self._open[request.id] = reservation
        return True

    def settle(self, request: SimRequest, attempt: Attempt | None, outcome: Outcome) -> None:
        """Charge what the last attempt gave, and ship it to the ledger."""
        reservation = self._open.pop(request.id)
        usage = TokenUsage()
        if attempt is not None and attempt.has_output:
            usage = TokenUsage(
                request.prompt_tokens, attempt.cached_tokens, max(1, attempt.produced_tokens)
            )
        word = LedgerOutcome.FINISHED if outcome is Outcome.FINISHED else LedgerOutcome.FAILED
        settlement = self._admission.settle(reservation, usage, word)
        if self._loop.now_s < self._disk_free_s:
            self._loop.at(self._disk_free_s, self._journal, settlement)
        else:
            self._journal(settlement)

    def stall_disk(self, until_s: float) -> None:
        """The journal's disk is full, or its fsync hangs: nothing is written before that time."""
        self._disk_free_s = max(self._disk_free_s, until_s)

    def _journal(self, settlement: Settlement) -> None:
        self._sequence += 1
        self._admission.journaled(settlement.request_id, self._sequence)
        self._loop.after(ship_delay_s, self.post, (settlement, self._sequence))
        if self._rng.random() < self._duplicate_share:
            self._loop.after(2 * ship_delay_s, self.post, (settlement, self._sequence))

    def post(self, shipped: tuple[Settlement, int]) -> None:
        """The ledger takes a settlement, unless it has it."""
        settlement, sequence = shipped
        if settlement.request_id not in self._posted:
            self._posted.add(settlement.request_id)
            self._charge(settlement)
        self._posted_sequence = max(self._posted_sequence, sequence)
        if self._loop.now_s >= self._next_snapshot_s:
            self._next_snapshot_s = self._loop.now_s + snapshot_interval_s
            self._admission.load(dict(self._balances), self._posted_sequence)

    def _charge(self, settlement: Settlement) -> None:
        tenant = settlement.tenant_id
        self._invariants.settled(int(settlement.request_id))
        self._balances[tenant] -= settlement.amount_nanousd or 0
        if self._balances[tenant] < 0:
            raise InvariantBroken(f"tenant {tenant} spent more than its credit")

    def spent_nanousd(self) -> int:
        """What all tenants were charged."""
        return sum(self._credits) - sum(self._balances.values())

    def check_end(self, requests_admitted: int) -> None:
        """Every admitted request is in the ledger, and nothing is held."""
        if self._open or self._admission.running_count():
            raise InvariantBroken("a reservation was never settled")
        if len(self._posted) != requests_admitted:
            raise InvariantBroken(
                f"{requests_admitted} requests were admitted, {len(self._posted)} settled"
            )
