"""Traces by OpenTelemetry's SDK, exported over OTLP/HTTP; its only home, imported when asked for.

Sampling, batching, headers and resource attributes are set by OpenTelemetry's own `OTEL_`
variables; what is here is which spans there are. A collector that is away costs spans and
nothing else: they wait in a bounded queue, and a thread of the SDK's sends them.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigurationError
from headrace.observability.tracing import (
    Attributes,
    RequestTrace,
    Tracer,
    checked,
    parse_traceparent,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.trace import Tracer as SdkTracer

traces_path = "/v1/traces"
nanoseconds_per_s = 1_000_000_000


def open_tracer(endpoint: str, service_name: str) -> Tracer:
    """What exports to a collector's OTLP/HTTP endpoint, `http://host:4318`, or its traces' path.

    ConfigurationError where the packages are not installed or the endpoint is none."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"--otlp-endpoint is {endpoint!r}; give a collector's OTLP/HTTP address, like "
            "http://127.0.0.1:4318."
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "Tracing needs OpenTelemetry's packages: pip install 'headrace[tracing]'."
        ) from None
    url = endpoint.rstrip("/")
    url = url if url.endswith(traces_path) else url + traces_path
    resource = Resource.create(
        {"service.name": service_name, "service.version": version("headrace")}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return OtlpTracer(provider)


class OtlpTracer:
    """A `Tracer` over one provider."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace")

    def begin(self, name: str, traceparent: str | None, start_s: float) -> RequestTrace:
        """A request's span; a malformed parent is none."""
        from opentelemetry import trace  # noqa: PLC0415

        context = None
        parent = parse_traceparent(traceparent)
        if parent is not None:
            trace_id, parent_id, flags = parent
            remote = trace.SpanContext(
                trace_id, parent_id, is_remote=True, trace_flags=trace.TraceFlags(flags)
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
        span = self._tracer.start_span(
            name, context, trace.SpanKind.SERVER, start_time=nanoseconds(start_s)
        )
        return OtlpRequestTrace(self._tracer, span)

    def close(self) -> None:
        """Send what is left; the SDK gives up after `OTEL_BSP_EXPORT_TIMEOUT`."""
        self._provider.shutdown()


class OtlpRequestTrace:
    """A `RequestTrace`: a span, and its child of now."""

    def __init__(self, tracer: "SdkTracer", span: "Span") -> None:
        from opentelemetry import trace  # noqa: PLC0415

        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._phase: Span | None = None

    def phase(self, name: str, attributes: Attributes | None = None) -> None:
        """End the present phase and begin another."""
        self._end_phase()
        self._phase = self._tracer.start_span(
            name, self._context, attributes=checked(attributes or {})
        )

    def note(self, attributes: Attributes) -> None:
        """Say more of the present phase."""
        self._present.set_attributes(checked(attributes))

    def failed(self, error_type: str) -> None:
        """Mark the present phase as failed; the code says how, no message is kept."""
        from opentelemetry.trace import StatusCode  # noqa: PLC0415

        self._present.set_attribute("error.type", error_type)
        self._present.set_status(StatusCode.ERROR)

    def past(self, name: str, start_s: float, end_s: float, attributes: Attributes) -> None:
        """Add a phase that is over."""
        span = self._tracer.start_span(
            name, self._context, attributes=checked(attributes), start_time=nanoseconds(start_s)
        )
        span.end(nanoseconds(end_s))

    def end(self, attributes: Attributes, error_type: str | None = None) -> None:
        """End the request's span and the phase that is open."""
        self._end_phase()
        self.note(attributes)
        if error_type is not None:
            self.failed(error_type)
        self._span.end()

    @property
    def traceparent(self) -> str:
        """The present phase as a header's value."""
        context = self._present.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @property
    def exemplar_id(self) -> str:
        """The trace's id in hexadecimal, if it is sampled."""
        context = self._span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    @property
    def _present(self) -> "Span":
        return self._phase or self._span

    def _end_phase(self) -> None:
        if self._phase is not None:
            self._phase.end()
            self._phase = None


def nanoseconds(wall_s: float) -> int:
    """A wall time as OpenTelemetry counts it."""
    return int(wall_s * nanoseconds_per_s)
