"""What the control plane can say about decisions: of routers, by gateways, and of scaling."""

from collections.abc import Mapping

from headrace.control.gateway_poll import GatewayPoll
from headrace.control.live_history import LiveHistory
from headrace.control.scaler import Look, Scaler


class Insight:
    """Answers to why, for the admin API."""

    def __init__(self, poll: GatewayPoll, scaler: Scaler, live: LiveHistory | None = None) -> None:
        """`live` is None where nobody samples the traffic."""
        self._poll = poll
        self._scaler = scaler
        self.live = live

    async def route(self, request_id: str) -> bytes:
        """How a request was routed, as JSON; NotFound if no gateway knows."""
        return await self._poll.decisions(request_id)

    @property
    def scaling(self) -> Mapping[str, Look]:
        """The last look at each deployment that scales, by id; empty on one that does not lead."""
        return self._scaler.looks
