"""Shared limits in a dictionary: what every store of them must do, without a store."""

from collections import defaultdict
from collections.abc import Callable

from headrace.base.errors import Conflict
from headrace.storage.lease_exchange import (
    Answer,
    Answers,
    Ask,
    Exchange,
    LimitKind,
    Standing,
    grant,
    lease_lifetime_s,
    marker_window,
)


class MemoryLimits:
    """`SharedLimits` of one process."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._gateways: dict[str, tuple[Exchange, float]] = {}
        self.leases: dict[str, dict[str, int]] = defaultdict(dict)  # by key and gateway
        self.uses: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.balances: dict[str, int] = {}  # by tenant id

    def begin(self, gateway_id: str) -> Standing:
        """As `SharedLimits.begin`."""
        if gateway_id not in self._gateways:
            return Standing(self._now_s())
        said, _ = self._gateways[gateway_id]
        leases = {
            key: by_gateway[gateway_id]
            for key, by_gateway in self.leases.items()
            if by_gateway.get(gateway_id)
        }
        return Standing(self._now_s(), said.operation, said.report, said.sequence, leases)

    def exchange(self, said: Exchange) -> Answers:
        """As `SharedLimits.exchange`."""
        known = self._gateways.get(said.gateway_id)
        if known is not None and said.operation <= known[0].operation:
            raise Conflict("too late")
        if known is None or said.report > known[0].report:
            for use in said.uses:
                self.uses[use.key][use.window] += use.amount
        self._gateways[said.gateway_id] = (said, self._now_s())
        answers = tuple(self._grant(said.gateway_id, ask) for ask in said.asks)
        for ask in said.asks:
            uses = self.uses[ask.key]
            for window in [window for window in uses if marker_window < window < ask.kept_since]:
                del uses[window]
        return Answers(self._now_s(), answers)

    def close(self) -> None:
        """It holds nothing."""

    def _grant(self, gateway_id: str, ask: Ask) -> Answer:
        uses = self.uses[ask.key]
        if ask.kind <= LimitKind.ROLLING and not ask.expires and marker_window not in uses:
            if not ask.has_base:
                self.leases[ask.key][gateway_id] = ask.committed
                return Answer(ask.key, ask.committed, 0, 0, 0, is_new=True)
            for window, amount in (*ask.base, (marker_window, 0)):
                uses[window] += amount
        others = sum(
            amount
            for name, amount in self.leases[ask.key].items()
            if name != gateway_id and (not ask.expires or self._is_heard(name))
        )
        balance = self.balances.get(ask.tenant_id, 0) if ask.kind is LimitKind.CREDIT else 0
        answer = grant(ask, ask.capacity + balance, uses.items(), others)
        self.leases[ask.key][gateway_id] = answer.lease
        return answer

    def _is_heard(self, gateway_id: str) -> bool:
        return self._gateways[gateway_id][1] > self._now_s() - lease_lifetime_s
