"""Traces for a process that serves: opened if an endpoint is set, and closed when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.observability.tracing import Tracer


@contextmanager
def tracing(endpoint: str | None, service_name: str) -> Iterator[Tracer | None]:
    """A tracer to the endpoint; None, and nothing imported, where none is set."""
    if not endpoint:
        yield None
        return
    # OpenTelemetry takes a third of a second to import, and is an extra.
    from headrace.observability.otlp import open_tracer  # noqa: PLC0415 -- loaded if asked for

    tracer = open_tracer(endpoint, service_name)
    try:
        yield tracer
    finally:
        tracer.close()
