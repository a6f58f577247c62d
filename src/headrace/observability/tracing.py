"""What a request's trace is, without a library: phases of a span, and what may be said of them.

    POST /v1/chat/completions                     the request, child of the client's traceparent
      admission | queue | attempt | ... | settle  phases, one after the other
                          chat MODEL              the engine server's, by the attempt's traceparent
                            queue | prefill | decode

Whoever serves holds a `Tracer` or None, and whoever works on a request a `RequestTrace` or None:
without an endpoint nothing is imported, and each seam costs one look at None. Attributes are
named here and nothing else is ever set, so no prompt, key, header or address can become one.
The exporter is `otlp`.
"""

import re
from typing import Protocol

AttributeValue = str | int | float | bool

# The names are OpenTelemetry's semantic conventions for generative AI and HTTP, and our own.
attribute_names = frozenset(
    (
        "error.type",
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.request.max_tokens",
        "gen_ai.response.id",
        "gen_ai.response.finish_reasons",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.output_tokens",
        "http.request.method",
        "http.response.status_code",
        "http.route",
        "headrace.attempt",
        "headrace.attempts",
        "headrace.decode.mean_gap_ms",
        "headrace.decode.outputs",
        "headrace.deployment.id",
        "headrace.endpoint.id",
        "headrace.key.id",
        "headrace.outcome",
        "headrace.priority",
        "headrace.project.id",
        "headrace.request.id",
        "headrace.settlement.durable",
        "headrace.tenant.id",
        "headrace.usage.source",
    )
)
text_characters_max = 200  # of an attribute's value; a model's name may be as long as it likes

traceparent_pattern = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Attributes = dict[str, AttributeValue]


class RequestTrace(Protocol):
    """One request's span, and the phase that it is in."""

    def phase(self, name: str, attributes: Attributes | None = None) -> None:
        """End the present phase, if there is one, and begin another."""

    def note(self, attributes: Attributes) -> None:
        """Say more of the present phase, or of the request if there is none."""

    def failed(self, error_type: str) -> None:
        """The present phase failed, with this error's code."""

    def past(self, name: str, start_s: float, end_s: float, attributes: Attributes) -> None:
        """Add a phase that is over, by wall times."""

    def end(self, attributes: Attributes, error_type: str | None = None) -> None:
        """The request is over; later calls change nothing."""

    @property
    def traceparent(self) -> str:
        """The header that makes another process's span a child of the present phase."""

    @property
    def exemplar_id(self) -> str:
        """The trace's id if it is sampled, for exemplars; empty otherwise."""


class Tracer(Protocol):
    """Begins traces, and sends them on."""

    def begin(self, name: str, traceparent: str | None, start_s: float) -> RequestTrace:
        """A request's span from a wall time on, child of whom a valid `traceparent` names."""

    def close(self) -> None:
        """Send what is left, within bounds."""


def checked(attributes: Attributes) -> Attributes:
    """The attributes, with long texts cut; an unnamed one is a programmer's error."""
    unnamed = attributes.keys() - attribute_names
    assert not unnamed, f"not in attribute_names: {sorted(unnamed)}"
    return {
        name: value[:text_characters_max] if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def parse_traceparent(text: str | None) -> tuple[int, int, int] | None:
    """Trace id, parent id and flags of a W3C traceparent of version 00; None if it is none."""
    found = traceparent_pattern.fullmatch(text or "")
    if found is None:
        return None
    trace_id, parent_id, flags = (int(part, 16) for part in found.groups())
    return (trace_id, parent_id, flags) if trace_id and parent_id else None
