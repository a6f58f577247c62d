"""Traces: parents are taken from well-formed headers, attributes are named, and off is off."""

import subprocess
import sys

import pytest

from headrace.base.errors import ConfigurationError
from headrace.observability.otlp import open_tracer
from headrace.observability.tracing import checked, parse_traceparent, text_characters_max

trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_traceparent_is_read() -> None:
    found = parse_traceparent(f"00-{trace_id}-{parent_id}-01")
    assert found == (int(trace_id, 16), int(parent_id, 16), 1)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "Bearer secret",
        f"01-{trace_id}-{parent_id}-01",
        f"00-{trace_id.upper()}-{parent_id}-01",
        f"00-{'0' * 32}-{parent_id}-01",
        f"00-{trace_id}-{'0' * 16}-01",
        f"00-{trace_id}-{parent_id}-01-more",
        f"00-{trace_id}-{parent_id}-1",
    ],
)
def test_anything_else_is_no_parent(text: str | None) -> None:
    assert parse_traceparent(text) is None


def test_only_named_attributes_are_set_and_long_texts_are_cut() -> None:
    cut = checked({"gen_ai.request.model": "m" * 1000})
    assert cut == {"gen_ai.request.model": "m" * text_characters_max}
    with pytest.raises(AssertionError, match="authorization"):
        checked({"authorization": "Bearer secret"})


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--otlp-endpoint"):
        open_tracer("localhost:4318", "test")


def test_a_gateway_and_an_engine_server_import_no_opentelemetry() -> None:
    code = (
        "import sys, headrace.cli.gateway, headrace.cli.serve\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
