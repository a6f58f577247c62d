import pytest

from headrace.observability import engine_metrics
from headrace.observability.metrics import (
    Histogram,
    MetricDeclaration,
    MetricKind,
    render,
)

declarations = [
    value for value in vars(engine_metrics).values() if isinstance(value, MetricDeclaration)
]


def lines(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


def test_a_value_stands_under_its_name_and_under_its_alias_with_the_model() -> None:
    text = render([(engine_metrics.running_requests, 3)], "my model")
    assert lines(text) == [
        "headrace_engine_running_requests 3.0",
        'vllm:num_requests_running{model_name="my model"} 3.0',
    ]


def test_a_mapping_gives_a_line_for_each_label_value() -> None:
    text = render([(engine_metrics.finished_requests_total, {"stop": 2, "abort": 1})], "m")
    assert 'headrace_engine_finished_requests_total{finished_reason="stop"} 2.0' in lines(text)
    assert 'vllm:request_success_total{finished_reason="abort",model_name="m"} 1.0' in lines(text)


def test_a_histogram_counts_each_observation_in_every_bucket_that_holds_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    declaration = MetricDeclaration("x_seconds", MetricKind.HISTOGRAM, "doc")
    assert lines(render([(declaration, histogram)], "m")) == [
        'x_seconds_bucket{le="1.0"} 2.0',
        'x_seconds_bucket{le="2.0"} 3.0',
        'x_seconds_bucket{le="+Inf"} 4.0',
        "x_seconds_count 4.0",
        "x_seconds_sum 12.0",
    ]


@pytest.mark.parametrize("declaration", declarations, ids=lambda declaration: declaration.name)
def test_names_say_kind_and_unit(declaration: MetricDeclaration) -> None:
    assert declaration.name.startswith("headrace_engine_")
    assert declaration.name.endswith("_total") == (declaration.kind is MetricKind.COUNTER)
    if declaration.kind is MetricKind.HISTOGRAM:
        assert declaration.name.endswith(("_seconds", "_tokens"))
    assert declaration.doc.endswith(".")


def test_no_name_is_declared_twice() -> None:
    names = [declaration.name for declaration in declarations]
    names += [declaration.alias for declaration in declarations if declaration.alias]
    assert len(set(names)) == len(names)


def test_opentelemetrys_names_carry_its_labels() -> None:
    sizes = Histogram((4.0,))
    sizes.observe(3)
    text = lines(render([(engine_metrics.request_tokens, {"input": sizes})], "m"))
    assert (
        'gen_ai_client_token_usage_count{gen_ai_operation_name="chat",'
        'gen_ai_provider_name="headrace",gen_ai_request_model="m",gen_ai_token_type="input"} 1.0'
    ) in text
    assert 'headrace_engine_request_tokens_count{type="input"} 1.0' in text


def test_a_bucket_has_the_trace_of_its_last_traced_observation() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(0.5, "0" * 31 + "a")
    histogram.observe(0.7, "0" * 31 + "b")
    histogram.observe(0.9)
    declaration = MetricDeclaration("x_seconds", MetricKind.HISTOGRAM, "doc")
    text = render([(declaration, histogram)], "m", with_exemplars=True)
    assert f'x_seconds_bucket{{le="1.0"}} 3.0 # {{trace_id="{"0" * 31}b"}} 0.7' in lines(text)
    assert text.endswith(b"# EOF\n")
    assert b"trace_id" not in render([(declaration, histogram)], "m")
