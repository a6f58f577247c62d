"""Admission: no request starts unless its worst case is covered, and no credit is spent twice.

    spendable = balance in the last snapshot
              - settlements that the snapshot does not contain yet
              - worst cases of the requests that run now
              - the tenant's floor

A settlement leaves the second line when a snapshot arrives whose journal sequence covers it, so
that there is no moment in which it is counted in neither. One `Admission` serves one gateway; it
is synchronous, does no I/O, and may be called from several threads.
"""

import heapq
import threading
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest, PaymentRequired, Unavailable
from headrace.base.money import format_usd, nanousd_per_usd
from headrace.ledger.history import PastUse
from headrace.ledger.limits import Hold, Limiter, MinuteStanding, Room
from headrace.ledger.rating import rate, worst_case_nanousd
from headrace.ledger.reservation import (
    KeyUse,
    Outcome,
    Reservation,
    Settlement,
    TokenUsage,
    UnitCounts,
    UsageSource,
    one_request,
)
from headrace.ledger.scopes import (
    Need,
    ScopeId,
    ScopeKind,
    ScopeLimits,
    no_limits,
    scope_ids,
)
from headrace.spec.prices import PriceVersion

# Bounds the memory of the holds, and the settlements that must still find room on a full disk.
running_requests_max = 16_384


# Beyond any model and any bill; they keep every amount and count inside 64 bits.
request_tokens_max = 1_000_000_000
request_nanousd_max = 1_000_000 * nanousd_per_usd


class UnpricedPolicy(StrEnum):
    """What happens to a request for a model that has no price in force."""

    REFUSE = "refuse"
    UNRATED = "unrated"  # admit it for tenants without a floor; its usage is rated later


class Unposted(NamedTuple):
    """A settlement in the journal that the balances may not contain yet."""

    sequence: int
    tenant_id: str
    amount_nanousd: int


class Admission:
    """The holds of the requests that run now, over the balances of the ledger."""

    def __init__(
        self,
        clock: Clock,
        *,
        unpriced: UnpricedPolicy = UnpricedPolicy.REFUSE,
        requests_max: int = running_requests_max,
        limiter: Limiter | None = None,
    ) -> None:
        self._unpriced = unpriced
        self._requests_max = requests_max
        self._lock = threading.Lock()
        self._running: dict[str, Reservation] = {}  # by request id
        self._settling: dict[str, Unposted] = {}  # settled, not yet in the journal
        self._unposted: list[Unposted] = []  # a heap; the lowest sequence first
        self._balances: Mapping[str, int] = {}
        self._sequence = 0  # of the journal, that the balances contain
        self._held: dict[str, int] = {}  # running and unposted amounts by tenant id
        self._limiter = limiter or Limiter(clock)
        self._limit_holds: dict[str, Hold] = {}  # of the running requests

    def load(
        self,
        balances_nanousd: Mapping[str, int],
        sequence: int,
        totals: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """Take a newer snapshot, which contains this journal's settlements up to `sequence`.

        An older snapshot than the last is ignored. `totals` are for gateways that share limits."""
        with self._lock:
            if sequence < self._sequence:
                return
            self._balances = balances_nanousd
            self._sequence = sequence
            while self._unposted and self._unposted[0].sequence <= sequence:
                posted = heapq.heappop(self._unposted)
                self._release(posted.tenant_id, posted.amount_nanousd)

    def load_history(self, history: Iterable[PastUse]) -> None:
        """Take what the ledger says was used in the present periods; once, before serving."""
        with self._lock:
            self._limiter.load(history)

    def reserve(
        self,
        *,
        request_id: str,
        tenant_id: str,
        project_id: str,
        key_id: str,
        model: str,
        price: PriceVersion | None,
        credit_floor_nanousd: int | None,
        prompt_tokens_max: int,
        output_tokens_max: int,
        limits: ScopeLimits = no_limits,
        price_percent: int = 100,
        units_max: UnitCounts = one_request,
        key_digest: str | None = None,
    ) -> Reservation:
        """Set the worst case aside in the credit and in every limit, or refuse: all or nothing.

        A floor of None means postpaid: nothing is refused for want of credit. Raises
        PaymentRequired with `needed_nanousd` and `available_nanousd`, or for a budget, and
        RateLimited for every other limit (see `refusals.refusal_error`); Unavailable if the model
        has no price or too many requests run; InvalidRequest for impossible token counts."""
        if price is None and (
            self._unpriced is UnpricedPolicy.REFUSE or credit_floor_nanousd is not None
        ):
            raise Unavailable(
                f"the model {model!r} has no price in force; its operator must set one",
                model=model,
            )
        amount_nanousd = amount_to_hold(price, prompt_tokens_max, output_tokens_max, units_max)
        with self._lock:
            now_s = self._limiter.time_s()
            reservation = Reservation(
                request_id=request_id,
                tenant_id=tenant_id,
                project_id=project_id,
                key_id=key_id,
                model=model,
                price=price,
                prompt_tokens_max=prompt_tokens_max,
                output_tokens_max=output_tokens_max,
                amount_nanousd=amount_nanousd,
                reserve_time=now_s,
                price_percent=price_percent,
                key_use=None if key_digest is None else KeyUse(key_digest, now_s),
            )
            self._check_room(request_id)
            if credit_floor_nanousd is not None:
                available_nanousd = self._spendable(tenant_id, credit_floor_nanousd)
                if amount_nanousd > available_nanousd:
                    raise insufficient(amount_nanousd, available_nanousd)
            self._limit_holds[request_id] = self._limiter.reserve(
                scope_ids(tenant_id, project_id, key_id, model),
                limits,
                Need(prompt_tokens_max, output_tokens_max, amount_nanousd),
            )
            self._running[request_id] = reservation
            self._held[tenant_id] = self._held.get(tenant_id, 0) + amount_nanousd
        return reservation

    def settle(
        self,
        reservation: Reservation,
        usage: TokenUsage,
        outcome: Outcome,
        source: UsageSource = UsageSource.ENGINE,
        replica_id: str | None = None,
        *,
        units: UnitCounts = one_request,
        is_borne: bool = False,
    ) -> Settlement:
        """End a reservation at what was used, exactly once; Conflict at the second time.

        The amount stays held until `journaled` and a snapshot that contains it."""
        settlement = settle_reservation(
            reservation,
            usage,
            outcome,
            source,
            self.time_s(),
            replica_id=replica_id,
            units=units,
            is_borne=is_borne,
        )
        amount_nanousd = settlement.amount_nanousd or 0
        with self._lock:
            if self._running.pop(reservation.request_id, None) is None:
                raise Conflict(
                    f"the request {reservation.request_id} is settled already, or was never "
                    "admitted here",
                    request_id=reservation.request_id,
                )
            self._settling[reservation.request_id] = Unposted(
                0, reservation.tenant_id, amount_nanousd
            )
            self._release(reservation.tenant_id, reservation.amount_nanousd - amount_nanousd)
            self._limiter.settle(
                self._limit_holds.pop(reservation.request_id),
                settlement.usage.prompt_tokens,
                settlement.usage.completion_tokens,
                amount_nanousd,
            )
        return settlement

    def journaled(self, request_id: str, sequence: int) -> None:
        """Say where in the journal a settlement went."""
        with self._lock:
            self._unpost(self._settling.pop(request_id)._replace(sequence=sequence))

    def replayed(self, settlement: Settlement, sequence: int) -> None:
        """Hold a settlement that an earlier process left in the journal."""
        amount_nanousd = settlement.amount_nanousd or 0
        with self._lock:
            tenant_id = settlement.tenant_id
            self._held[tenant_id] = self._held.get(tenant_id, 0) + amount_nanousd
            self._unpost(Unposted(sequence, tenant_id, amount_nanousd))
            if sequence > self._limited_sequence():
                self._limiter.restore(settlement)

    def cancel(self, reservation: Reservation) -> None:
        """Forget a reservation that the journal refused; nothing was used."""
        with self._lock:
            if self._running.pop(reservation.request_id, None) is not None:
                self._release(reservation.tenant_id, reservation.amount_nanousd)
                self._limiter.cancel(self._limit_holds.pop(reservation.request_id))

    def available_nanousd(self, tenant_id: str) -> int:
        """The balance less everything that is held; the tenant's floor is not in it."""
        with self._lock:
            return self._available(tenant_id)

    def spendable_nanousd(self, tenant_id: str, credit_floor_nanousd: int) -> int | None:
        """What one more request may cost, as far as the tenant's credit goes; None: unknown."""
        with self._lock:
            return self._spendable(tenant_id, credit_floor_nanousd)

    def room(self, ids: tuple[ScopeId, ...], limits: ScopeLimits) -> Room:
        """What the limits leave for one more request of these scopes; credit is not in it."""
        with self._lock:
            return self._limiter.room(ids, limits)

    def standing(self, ids: tuple[ScopeId, ...], limits: ScopeLimits) -> MinuteStanding:
        """What the minute limits leave, for the client to know."""
        with self._lock:
            return self._limiter.standing(ids, limits)

    def releasable_sequence(self, posted_sequence: int) -> int:
        """How much of the journal nobody needs any more, once the ledger has so much of it."""
        return posted_sequence

    def time_s(self) -> float:
        """Now, as limits and settlements count it: where gateways share limits, by their store."""
        with self._lock:
            return self._limiter.time_s()

    def running_count(self) -> int:
        """How many requests hold a reservation."""
        with self._lock:
            return len(self._running)

    def _available(self, tenant_id: str) -> int:
        return self._balances.get(tenant_id, 0) - self._held.get(tenant_id, 0)

    def _spendable(self, tenant_id: str, credit_floor_nanousd: int) -> int:
        return self._available(tenant_id) - credit_floor_nanousd

    def _limited_sequence(self) -> int:
        """Settlements of the journal up to here are in the limits before anything is restored."""
        return self._sequence

    def _check_room(self, request_id: str) -> None:
        if request_id in self._running or request_id in self._settling:
            raise Conflict(f"the request {request_id} is admitted already", request_id=request_id)
        if len(self._running) >= self._requests_max:
            raise Unavailable(
                f"{self._requests_max} requests run already; try again",
                retry_after_s=1.0,
                limit=self._requests_max,
            )

    def _unpost(self, unposted: Unposted) -> None:
        """Hold a settlement until the balances contain it, unless they do already."""
        if unposted.sequence <= self._sequence:
            self._release(unposted.tenant_id, unposted.amount_nanousd)
        else:
            heapq.heappush(self._unposted, unposted)

    def _release(self, tenant_id: str, amount_nanousd: int) -> None:
        """Hold less; a tenant that holds nothing takes no memory."""
        left = self._held.get(tenant_id, 0) - amount_nanousd
        if left:
            self._held[tenant_id] = left
        else:
            self._held.pop(tenant_id, None)


def amount_to_hold(
    price: PriceVersion | None,
    prompt_tokens_max: int,
    output_tokens_max: int,
    units_max: UnitCounts = one_request,
) -> int:
    """The worst case of a request, 0 where it has no price; InvalidRequest if it is absurd."""
    counts = (prompt_tokens_max, output_tokens_max)
    if min(counts) < 0 or max(counts) > request_tokens_max:
        raise InvalidRequest(
            f"a request has 0 to {request_tokens_max} prompt and output tokens",
            param="max_tokens",
        )
    amount_nanousd = 0 if price is None else worst_case_nanousd(price.price, *counts, units_max)
    if amount_nanousd > request_nanousd_max:
        raise InvalidRequest(
            f"this request may cost more than ${format_usd(request_nanousd_max)}; lower max_tokens",
            param="max_tokens",
        )
    return amount_nanousd


def settle_reservation(
    reservation: Reservation,
    usage: TokenUsage,
    outcome: Outcome,
    source: UsageSource,
    settle_time: float,
    *,
    replica_id: str | None = None,
    units: UnitCounts = one_request,
    is_borne: bool = False,
) -> Settlement:
    """The settlement of a reservation at the price that was fixed at admission; pure.

    Counts beyond `request_tokens_max`, which only a broken engine reports, are cut to it. What was
    done and not metered is unrated, and stays so. What `is_borne`, and what the platform broke of a
    request that its caller sends again under the same key, is at the platform's expense."""
    price = None if source is UsageSource.UNMETERED else reservation.price
    usage = usage.at_most(request_tokens_max)
    settlement = Settlement(
        request_id=reservation.request_id,
        tenant_id=reservation.tenant_id,
        project_id=reservation.project_id,
        key_id=reservation.key_id,
        model=reservation.model,
        usage=usage,
        outcome=outcome,
        source=source,
        price_book_id=None if price is None else price.price_book_id,
        charge=None
        if price is None
        else rate(price.price, usage, reservation.amount_nanousd, units),
        settle_time=settle_time,
        replica_id=replica_id,
        price_percent=reservation.price_percent,
        units=units,
        key_use=reservation.key_use,
    )
    is_cut_under_key = reservation.key_use is not None and outcome is Outcome.FAILED
    return settlement.borne() if is_borne or is_cut_under_key else settlement


def insufficient(needed_nanousd: int, available_nanousd: int) -> PaymentRequired:
    """The refusal, with its numbers."""
    return PaymentRequired(
        f"this request may cost up to ${format_usd(needed_nanousd)} and only "
        f"${format_usd(max(0, available_nanousd))} of credit is free; add credit or lower "
        "max_tokens",
        scope=ScopeKind.TENANT.value,
        limit_name="credit",
        needed_nanousd=needed_nanousd,
        available_nanousd=available_nanousd,
    )
