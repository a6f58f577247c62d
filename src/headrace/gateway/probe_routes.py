"""What machines ask of a gateway: whether it lives, whether it takes requests, its metrics."""

from headrace.gateway.metrics import GatewayGauges, metrics_text
from headrace.gateway.route_table import Access, Call, Route, encode_json
from headrace.gateway.state import GatewayState
from headrace.http.asgi import header, send_bytes
from headrace.observability.metrics import (
    content_type,
    openmetrics_content_type,
    reads_openmetrics,
)


class ProbeRoutes:
    """The probes and the metrics."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self.draining = False

    @property
    def routes(self) -> tuple[Route, ...]:
        """Its routes."""
        return (
            Route("/metrics", "GET", self._metrics, Access.METRICS),
            Route("/livez", "GET", self._livez, Access.PUBLIC),
            Route("/readyz", "GET", self._readyz, Access.PUBLIC),
            Route("/health", "GET", self._health, Access.PUBLIC),
        )

    async def _metrics(self, call: Call) -> None:
        state = self._state
        leases = state.services.leases
        gauges = GatewayGauges(
            running_requests=state.services.admission.running_count(),
            room=state.services.forwarding.room,
            endpoints=state.endpoints,
            predictions=state.services.forwarding.picker.predictions,
            snapshot_age_s=state.follower.age_s,
            journal_healthy=state.journal.is_healthy,
            limiter_degraded=leases is not None and leases.is_degraded,
            dropped_log_lines=state.access_log.dropped,
            lag=state.lag,
            loop_failures=state.loops.totals(),
            journal_bytes=state.journal.status().total_bytes,
            certificate_expiry_s=self._certificate_expiry_s(),
            model_names=state.follower.snapshot.models,
            now_s=state.clock.monotonic_s(),
        )
        call.record.status = 200
        with_exemplars = state.tracer is not None and reads_openmetrics(
            header(call.scope, b"accept")
        )
        text = metrics_text(state.counters, gauges, with_exemplars=with_exemplars)
        kind = openmetrics_content_type if with_exemplars else content_type
        await send_bytes(call.send, 200, text, [(b"content-type", kind)])

    def _certificate_expiry_s(self) -> float | None:
        certificate = self._state.certificate
        if certificate is None:
            return None
        return certificate.expire_time() - self._state.clock.wall_s()

    async def _livez(self, call: Call) -> None:
        await call.answer(200, b'{"state":"live"}')

    async def _readyz(self, call: Call) -> None:
        reason, complaint = self._unready_reason(), self._state.loops.complaint()
        if reason:
            state, progress = "draining" if self.draining else "unavailable", None
        else:
            state, progress = "degraded" if complaint else "ready", 1.0
        detail = "; ".join(filter(None, (reason, complaint)))
        body = encode_json({"state": state, "progress": progress, "detail": detail})
        await call.answer(503 if reason else 200, body)

    async def _health(self, call: Call) -> None:
        await call.answer(503 if self._unready_reason() else 200, b"{}")

    def _unready_reason(self) -> str:
        """Why no request would be taken now; empty if it would."""
        if self.draining:
            return "this gateway shuts down"
        if not self._state.journal.is_healthy:
            return "the journal takes no reservations: its disk is full, slow or failing"
        return ""
