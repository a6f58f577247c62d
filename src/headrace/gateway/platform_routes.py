"""What the control plane asks of a gateway: the signals that it scales by, and why a replica."""

from headrace.base.errors import NotFound
from headrace.gateway.route_table import Access, Call, Route
from headrace.gateway.state import GatewayState
from headrace.router.decision_log import decisions_max

signals_path = "/internal/signals"
decisions_prefix = "/internal/decisions/"


class PlatformRoutes:
    """The signals and the decisions."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routes."""
        template = decisions_prefix + "{request_id}"
        return (
            Route(signals_path, "GET", self._signals, Access.PLATFORM),
            Route(template, "GET", self._decisions, Access.PLATFORM),
        )

    async def _signals(self, call: Call) -> None:
        forwarding, counters = self._state.services.forwarding, self._state.counters
        goodput = (counters.model_requests, counters.model_good_requests)
        view = forwarding.traffic.view(self._state.endpoints, forwarding.room, goodput)
        await call.answer_value(view)

    async def _decisions(self, call: Call) -> None:
        """How the router chose for one request, oldest attempt first."""
        log = self._state.services.forwarding.picker.log
        decisions = () if log is None else log.of(call.parameter)
        if not decisions:
            raise NotFound(
                f"This gateway knows no decision on {call.parameter!r}; it keeps the last "
                f"{decisions_max:,} requests."
            )
        await call.answer_value({"decisions": decisions})
