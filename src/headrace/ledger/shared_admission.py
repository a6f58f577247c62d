"""Admission of one of several gateways: it spends what it leases, of limits and of credit.

    compose ──> the shared store ──> take          (or `missed`, if no answer came)

One exchange is under way at a time. What an exchange reports and what it leaves to spend meanwhile
are fixed by `compose`; a lost answer changes nothing, because the next one says the same report
again under the same number.
"""

from collections.abc import Iterable, Mapping

from headrace.base.clock import Clock
from headrace.ledger.admission import (
    Admission,
    UnpricedPolicy,
    amount_to_hold,
    running_requests_max,
)
from headrace.ledger.reservation import UnitCounts, one_request
from headrace.ledger.scopes import Need, ScopeId, ScopeLimits
from headrace.ledger.shared_keys import credit_limit, keyed_limits
from headrace.ledger.shared_limiter import Lack, Left, SharedLimiter
from headrace.spec.prices import PriceVersion
from headrace.storage.lease_exchange import Answers, Ask, Exchange, LimitKind, Standing, Use

asks_max = 2_000  # an exchange; beyond it the sequence waits for the rest


class SharedAdmission(Admission):
    """`Admission` over leases. The limits are those of `SharedLimiter`."""

    def __init__(
        self,
        clock: Clock,
        gateway_id: str,
        *,
        unpriced: UnpricedPolicy = UnpricedPolicy.REFUSE,
        requests_max: int = running_requests_max,
    ) -> None:
        self._shared = SharedLimiter(clock)
        super().__init__(clock, unpriced=unpriced, requests_max=requests_max, limiter=self._shared)
        self._gateway_id = gateway_id
        self._operation = 0
        self._report = 0
        self._reporting = False  # a report has no answer yet
        self._report_sequence = 0  # of the journal, that the report under way contains
        self._begun_sequence: int | None = None
        self._totals: Mapping[str, tuple[int, int]] = {}  # credits and debits by tenant id
        self.reported_sequence = 0  # settlements of the journal up to here are in the store

    def begin(self, standing: Standing, booked_sequence: int) -> None:
        """Take what the store knows of this gateway; call it before the journal is replayed.

        A gateway that was never there reports only what the ledger has not booked."""
        with self._lock:
            self._shared.set_time(standing.time_s)
            self._shared.begin(standing.leases)
            self._operation, self._report = standing.operation, standing.report
            sequence = booked_sequence if standing.sequence is None else standing.sequence
            self._begun_sequence = self.reported_sequence = self._report_sequence = sequence

    def load(
        self,
        balances_nanousd: Mapping[str, int],
        sequence: int,
        totals: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """As `Admission.load`. The totals come first: a lease shrinks only with them."""
        with self._lock:
            if totals is not None and sequence >= self._sequence:
                self._totals = totals
        super().load(balances_nanousd, sequence, totals)

    def releasable_sequence(self, posted_sequence: int) -> int:
        """As `Admission.releasable_sequence`: the store must have heard of it too."""
        with self._lock:
            return min(posted_sequence, self.reported_sequence)

    def spendable_nanousd(self, tenant_id: str, credit_floor_nanousd: int) -> int | None:
        """As `Admission.spendable_nanousd`; None while the store has not told."""
        with self._lock:
            leased = self._shared.state(credit_limit(tenant_id, credit_floor_nanousd))
            answer = leased.known(self._shared.calendar())
            if answer is None:
                return None
            return self._spendable(tenant_id, credit_floor_nanousd) + answer.room

    def outdated(
        self, ids: tuple[ScopeId, ...], limits: ScopeLimits, credit_floor_nanousd: int | None
    ) -> list[Lack]:
        """What of a request's limits and its credit the store spoke of a while ago."""
        wanted = keyed_limits(ids, limits)
        if credit_floor_nanousd is not None:
            wanted.append(credit_limit(ids[0], credit_floor_nanousd))
        with self._lock:
            return self._shared.outdated(wanted)

    def lacks(
        self,
        ids: tuple[ScopeId, ...],
        limits: ScopeLimits,
        *,
        price: PriceVersion | None,
        credit_floor_nanousd: int | None,
        prompt_tokens_max: int,
        output_tokens_max: int,
        units_max: UnitCounts = one_request,
    ) -> list[Lack]:
        """What a request would need beyond what is leased; `ids` begin with its tenant's."""
        amount = amount_to_hold(price, prompt_tokens_max, output_tokens_max, units_max)
        with self._lock:
            need = Need(prompt_tokens_max, output_tokens_max, amount)
            found = self._shared.lacks(ids, limits, need)
            if credit_floor_nanousd is not None:
                tenant_id = ids[0]
                leased = self._shared.state(credit_limit(tenant_id, credit_floor_nanousd))
                leased.spent += amount
                if amount > leased.lease - self._held.get(tenant_id, 0):
                    found.append(Lack(leased.limit, amount))
        return found

    def left_for(self, lacks: Iterable[Lack]) -> Left:
        """Where what a request lacks may come from, by what the store said last."""
        with self._lock:
            calendar = self._shared.calendar()
            worst = Left.ENOUGH
            for lack in lacks:
                leased = self._shared.state(lack.limit)
                answer = leased.known(calendar)
                if answer is None:
                    continue
                idle = leased.idle(calendar)
                if lack.limit.kind is LimitKind.CREDIT:
                    idle = leased.lease - self._held.get(lack.limit.tenant_id, 0)
                short = lack.amount - idle - answer.room
                if short > answer.others:
                    return Left.NOTHING
                if short > 0:
                    worst = Left.WITH_OTHERS
            return worst

    def compose(self, sequence: int, waiting: Iterable[Lack]) -> Exchange:
        """What to tell the store. `sequence`: the journal's last settlement, all counted here."""
        with self._lock:
            calendar = self._shared.calendar()
            needs: dict[str, int] = {}
            for lack in waiting:
                self._shared.state(lack.limit)
                needs[lack.limit.key] = needs.get(lack.limit.key, 0) + lack.amount
            for key, leased in self._shared.leased.items():
                leased.need = needs.get(key, 0)
                if leased.limit.kind is LimitKind.CREDIT:
                    leased.held = self._held.get(leased.limit.tenant_id, 0)
            dirty = [
                one
                for key, one in self._shared.leased.items()
                if key in needs or one.is_dirty(calendar)
            ]
            dirty.sort(key=lambda one: one.limit.key not in needs)
            chosen = dirty[:asks_max]
            if not self._reporting:
                self._report += 1
                self._reporting = True
                for leased in chosen:
                    leased.start_report()
                if len(chosen) == len(dirty):
                    self._report_sequence = sequence
            uses: list[Use] = []
            for leased in self._shared.leased.values():
                uses += leased.uses()
            asks = [self._ask(key, needs) for key in [one.limit.key for one in chosen]]
            self._operation += 1
            return Exchange(
                self._gateway_id,
                self._operation,
                self._report,
                self._report_sequence,
                tuple(uses),
                tuple(asks),
            )

    def take(self, answers: Answers) -> None:
        """The store has taken the last exchange."""
        with self._lock:
            self._shared.set_time(answers.time_s)
            self._reporting = False
            self.reported_sequence = self._report_sequence
            for leased in self._shared.leased.values():
                leased.report = {}
                leased.age += 1
            for answer in answers.answers:
                self._shared.leased[answer.key].take_answer(answer, answers.time_s)
            self._shared.forget_idle()

    def next_operation(self, said: Exchange, asks: tuple[Ask, ...]) -> Exchange:
        """The same report with these asks, as another exchange."""
        with self._lock:
            self._operation += 1
            return Exchange(
                said.gateway_id, self._operation, said.report, said.sequence, said.uses, asks
            )

    def expire(self) -> None:
        """The store was silent for so long that it has forgotten leases that expire."""
        with self._lock:
            self._shared.expire()

    def _ask(self, key: str, needs: Mapping[str, int]) -> Ask:
        leased = self._shared.leased[key]
        credits_, debits = self._totals.get(leased.limit.tenant_id, (0, 0))
        return leased.ask(self._shared.calendar(), credits_, debits)

    def _spendable(self, tenant_id: str, credit_floor_nanousd: int) -> int:
        leased = self._shared.state(credit_limit(tenant_id, credit_floor_nanousd))
        return leased.lease - self._held.get(tenant_id, 0)

    def _limited_sequence(self) -> int:
        return self._sequence if self._begun_sequence is None else self._begun_sequence
