"""What every adapter promises, whatever engine it stands for.

An adapter joins by being in the registry; its engine's answers are in `sim.engine_exchanges`.
"""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.facts import Ability, Start, StreamUsage
from headrace.adapters.protocol import EngineAdapter, EngineLoad, LaunchRequest, ReadinessState
from headrace.adapters.registry import all_adapters, find_adapter
from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.gateway.rewriter import StreamRewriter
from headrace.protocol.sse import SseDecoder
from headrace.sim.engine_exchanges import exchanges
from headrace.sim.engine_wire import EngineExchanges, noise, pieces

secret = "a-secret-of-this-replica"
salt = "a-salt-of-the-tenant"
request = LaunchRequest(
    model_path="/models/a",
    served_model_name="a-model",
    host="127.0.0.1",
    port=12_345,
    api_key=secret,
    threads=3,
    context_length=2048,
    tensor_parallel=2,
    memory_share=0.8,
    sequences_max=8,
    prefix_cache=False,
    quantization="a-method",
    extra_arguments=("--an-option", "its value"),
)
retried_statuses = (429, 500, 502, 503, 504)
own_fault_statuses = (401, 403, 404, 500, 501, 502)  # of the engine or of us, never the caller's
nothing_useful = (
    b"",
    b"<html><head><title>413 Too Large</title></head><body>nginx</body></html>",
    b"null",
    b"[]",
    b'"words"',
    b'{"error":null}',
    b'{"detail":[{"loc":["body"]},7]}',
    b"[" * 5000,
)

adapters = pytest.mark.parametrize("adapter", all_adapters, ids=lambda adapter: adapter.name)
started_adapters = pytest.mark.parametrize(
    "adapter",
    [adapter for adapter in all_adapters if adapter.facts.start is Start.PROCESS],
    ids=lambda adapter: adapter.name,
)
engines = pytest.mark.parametrize("engine", exchanges, ids=lambda engine: engine.engine)


def adapter_of(engine: EngineExchanges) -> EngineAdapter:
    return find_adapter(engine.engine)


def ends_with_body(engine: EngineExchanges) -> bool:
    dialect = adapter_of(engine).dialect
    return dialect is not None and dialect.ends_with_body


def rewriter(
    engine: EngineExchanges, *, usage_chunk: bool = False, every: bool = False
) -> StreamRewriter:
    return StreamRewriter(
        "logical", adapter_of(engine), usage_chunk=usage_chunk, usage_in_every_chunk=every
    )


def events_in(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in SseDecoder().feed(data)]


@adapters
def test_it_is_found_by_its_name(adapter: EngineAdapter) -> None:
    assert find_adapter(adapter.name) is adapter


def test_an_unknown_engine_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(InvalidRequest) as refused:
        find_adapter("vlm")
    assert refused.value.param == "engine"
    assert all(adapter.name in refused.value.message for adapter in all_adapters)


def test_every_adapter_has_its_exchanges() -> None:
    assert [engine.engine for engine in exchanges] == [adapter.name for adapter in all_adapters]


@started_adapters
def test_its_command_says_everything_that_was_asked_for(adapter: EngineAdapter) -> None:
    command = adapter.command(request)
    said = " ".join([*command.argv, *command.environment.values()])

    assert request.host in said
    assert "12345" in said
    assert command.argv[-2:] == ("--an-option", "its value")
    if adapter.name != "ollama":  # its models are in a store of its own
        assert request.model_path in command.argv


@started_adapters
def test_its_command_leaves_out_what_was_not_asked_for(adapter: EngineAdapter) -> None:
    bare = LaunchRequest("/models/a", "a-model", "127.0.0.1", 12_345, secret)
    command = adapter.command(bare)

    assert "None" not in " ".join([*command.argv, *command.environment.values()])
    assert len(command.argv) < len(adapter.command(request).argv)


@started_adapters
def test_its_command_keeps_the_secret_out_of_sight(adapter: EngineAdapter) -> None:
    command = adapter.command(request)

    assert not any(secret in argument for argument in command.argv)
    assert (secret in command.environment.values()) is adapter.facts.authenticates


@started_adapters
def test_the_same_request_is_the_same_command(adapter: EngineAdapter) -> None:
    assert adapter.command(request) == adapter.command(request)


@adapters
def test_an_engine_that_others_start_says_so(adapter: EngineAdapter) -> None:
    if adapter.facts.start is Start.EXTERNAL:
        with pytest.raises(InvalidRequest, match="not started by headrace"):
            adapter.command(request)


@adapters
def test_its_headers_carry_the_key_to_those_who_ask_for_it(adapter: EngineAdapter) -> None:
    sent = any(secret in value for value in adapter.headers(secret).values())

    assert sent is adapter.facts.authenticates


@adapters
def test_its_paths_are_paths(adapter: EngineAdapter) -> None:
    assert adapter.readiness_path.startswith("/")
    assert adapter.metrics_path is None or adapter.metrics_path.startswith("/")


@adapters
def test_a_tenants_salt_goes_where_it_is_used_and_nowhere_else(adapter: EngineAdapter) -> None:
    extras = adapter.extras(stream=False, request_id="req_1", cache_salt=salt)
    sent = salt in extras.fields.values() or salt in extras.headers.values()

    assert sent is (Ability.PREFIX_SALT in adapter.facts.abilities)
    assert "stream_options" not in extras.fields


@engines
@given(data=st.data())
def test_a_stranger_on_its_port_is_never_ready(
    engine: EngineExchanges, data: st.DataObject
) -> None:
    status = data.draw(st.integers(100, 599))
    body = data.draw(st.binary(min_size=1, max_size=200).filter(bytes.strip))

    assert adapter_of(engine).readiness(status, body).state is not ReadinessState.READY


@engines
def test_it_is_ready_when_its_engine_says_so(engine: EngineExchanges) -> None:
    assert adapter_of(engine).readiness(*engine.ready).state is ReadinessState.READY
    for status in (301, 401, 404, 500):
        answer = adapter_of(engine).readiness(status, engine.ready[1])
        assert answer.state is not ReadinessState.READY


@engines
def test_it_is_not_ready_while_its_engine_is_not(engine: EngineExchanges) -> None:
    if engine.unready is not None:
        status, body, state = engine.unready
        assert adapter_of(engine).readiness(status, body).state is state
    html = b"<!doctype html><title>sign in</title>"
    assert adapter_of(engine).readiness(200, html).state is ReadinessState.STARTING


@engines
def test_its_metrics_are_read_through_the_noise(engine: EngineExchanges) -> None:
    adapter = adapter_of(engine)

    assert adapter.load(engine.metrics) == engine.load
    assert adapter.load(engine.metrics.replace("\n", "\r\n")) == engine.load
    assert (adapter.metrics_path is None) is (engine.load == EngineLoad())


@adapters
def test_noise_alone_is_no_load(adapter: EngineAdapter) -> None:
    assert adapter.load(noise) == EngineLoad()


@engines
@given(data=st.data())
def test_metrics_that_break_off_never_fail(engine: EngineExchanges, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(engine.metrics)))
    load = adapter_of(engine).load(engine.metrics[:cut] + data.draw(st.text(max_size=20)))

    assert load.kv_usage is None or 0 <= load.kv_usage <= 1
    assert load.running_requests is None or load.running_requests >= 0


@adapters
@given(text=st.text(max_size=500))
def test_metrics_that_say_nothing_are_no_load(adapter: EngineAdapter, text: str) -> None:
    assert adapter.load(text) == EngineLoad()


@engines
def test_its_errors_are_understood(engine: EngineExchanges) -> None:
    for exchange in engine.errors:
        error = adapter_of(engine).error(exchange.status, exchange.body)
        assert type(error) is exchange.expected, exchange
        assert error.fields == exchange.fields
        assert not error.retryable
        assert error.message
        assert "refused it" not in error.message  # its own words came through


@adapters
@pytest.mark.parametrize("body", nothing_useful, ids=range(len(nothing_useful)))
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 500, 503])
def test_an_error_page_is_an_error_of_its_status(
    adapter: EngineAdapter, status: int, body: bytes
) -> None:
    error = adapter.error(status, body)

    assert error.message
    assert "nginx" not in error.message
    if status in (400, 413, 422):
        assert error.http_status in (400, 413)
    else:
        assert error.http_status == {429: 429, 503: 503}.get(status, 502)


@adapters
@given(status=st.integers(400, 599), body=st.binary(max_size=200))
def test_every_refusal_is_an_error_with_words(
    adapter: EngineAdapter, status: int, body: bytes
) -> None:
    error = adapter.error(status, body)

    assert isinstance(error, HeadraceError)
    assert error.message
    assert 400 <= error.http_status <= 599


@adapters
@pytest.mark.parametrize("status", retried_statuses)
def test_what_another_replica_may_do_better_is_retryable(
    adapter: EngineAdapter, status: int
) -> None:
    assert adapter.error(status, b"").retryable


@adapters
@pytest.mark.parametrize("status", own_fault_statuses)
def test_an_engine_that_is_wrong_does_not_blame_the_caller(
    adapter: EngineAdapter, status: int
) -> None:
    words = b'{"error": {"message": "key sk-123 is wrong, see /srv/engine.log"}}'
    error = adapter.error(status, words)

    assert error.http_status >= 500
    assert "sk-123" not in error.message


@adapters
def test_a_request_that_is_wrong_is_refused_in_the_engines_words(adapter: EngineAdapter) -> None:
    words = b'{"error": {"message": "temperature must not be negative", "param": "temperature"}}'
    error = adapter.error(400, words)

    assert isinstance(error, InvalidRequest)
    assert error.message == "temperature must not be negative"
    assert error.param == "temperature"
    assert not error.retryable


@engines
@given(data=st.data())
def test_its_stream_keeps_its_text_and_tells_its_use_however_it_is_cut(
    engine: EngineExchanges, data: st.DataObject
) -> None:
    stream = rewriter(engine)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(engine.stream)), max_size=6)))
    bounds = [0, *cuts, len(engine.stream)]
    passed = b"".join(stream.feed(engine.stream[start:end]) for start, end in pairwise(bounds))
    if not stream.is_done and stream.may_end:
        passed += stream.finish()
    events = events_in(passed)
    choices = [choice for event in events for choice in event["choices"]]

    assert stream.is_done
    assert stream.usage == engine.usage
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "".join(pieces)
    assert choices[-1]["finish_reason"] == "stop"
    assert all(event["model"] == "logical" for event in events)
    assert not any("usage" in event or "timings" in event for event in events)


@engines
def test_a_stream_that_is_cut_short_tells_what_passed(engine: EngineExchanges) -> None:
    stream = rewriter(engine)
    stream.feed(engine.stream[: engine.stream.index(json.dumps(pieces[-1]).encode())])

    assert not stream.is_done
    assert stream.may_end is ends_with_body(engine)
    assert stream.usage == engine.cut_usage
    told = adapter_of(engine).facts.stream_usage is StreamUsage.EVERY_CHUNK
    assert (engine.cut_usage is not None) is told
    assert stream.content_chunks == engine.opening_chunks + len(pieces) - 1


@engines
def test_a_caller_who_asks_for_usage_gets_it_once(engine: EngineExchanges) -> None:
    stream = rewriter(engine, usage_chunk=True)
    passed = stream.feed(engine.stream)
    events = events_in(passed if stream.is_done else passed + stream.finish())
    told = [event["usage"] for event in events if event["usage"] is not None]

    if engine.usage is None:
        assert told == []
        return
    assert [usage["completion_tokens"] for usage in told] == [len(pieces)]
    assert events[-1]["choices"] == []
    assert events[-1]["model"] == "logical"


@adapters
def test_a_stream_is_asked_to_tell_its_use(adapter: EngineAdapter) -> None:
    fields = adapter.extras(stream=True, request_id="req_1", cache_salt=salt).fields
    options = fields.get("stream_options", {})

    assert isinstance(options, dict)
    assert bool(options.get("include_usage")) is adapter.marks_stream_end
    if options.get("continuous_usage_stats") or adapter.running_usage_field is not None:
        assert adapter.facts.stream_usage is StreamUsage.EVERY_CHUNK


@adapters
@given(value=st.binary(max_size=60))
def test_running_usage_that_is_none_never_fails(adapter: EngineAdapter, value: bytes) -> None:
    adapter.running_usage(value)


@engines
def test_its_model_list_tells_the_context_where_it_can(engine: EngineExchanges) -> None:
    adapter = adapter_of(engine)

    assert adapter.context_length(engine.models, "a-model") == engine.context_length
    assert adapter.context_length(engine.models, "nobody") is None
    for body in nothing_useful:
        assert adapter.context_length(body, "a-model") is None


@adapters
def test_routes_are_found_below_its_address(adapter: EngineAdapter) -> None:
    url = adapter.url("http://127.0.0.1:1", "/v1/chat/completions")

    assert url.startswith("http://127.0.0.1:1/")
    assert url.endswith("/chat/completions")
