"""What every adapter promises, whatever engine it stands for.

An adapter joins by being in the registry. What its engine really says is in its unit test.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.protocol import EngineAdapter, EngineLoad, LaunchRequest, ReadinessState
from headrace.adapters.registry import all_adapters, find_adapter
from headrace.base.errors import HeadraceError, InvalidRequest

secret = "a-secret-of-this-replica"
request = LaunchRequest(
    model_path="/models/a.gguf",
    served_model_name="a-model",
    host="127.0.0.1",
    port=12_345,
    api_key=secret,
    threads=3,
    context_length=2048,
    extra_arguments=("--an-option", "its value"),
)
retried_statuses = (429, 500, 502, 503, 504)
own_fault_statuses = (401, 403, 404, 500, 501, 502)  # of the engine or of us, never the caller's

adapters = pytest.mark.parametrize("adapter", all_adapters, ids=lambda adapter: adapter.name)


@adapters
def test_it_is_found_by_its_name(adapter: EngineAdapter) -> None:
    assert find_adapter(adapter.name) is adapter


def test_an_unknown_engine_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(InvalidRequest) as refused:
        find_adapter("vlm")
    assert refused.value.param == "engine"
    assert all(adapter.name in refused.value.message for adapter in all_adapters)


@adapters
def test_its_command_says_everything_that_was_asked_for(adapter: EngineAdapter) -> None:
    command = adapter.command(request)
    said = " ".join([*command.argv, *command.environment.values()])

    assert request.model_path in command.argv
    for part in (request.served_model_name, request.host, "12345", "3"):
        assert part in said
    position = command.argv.index("--an-option")
    assert command.argv[position + 1] == "its value"


@adapters
def test_its_command_keeps_the_secret_out_of_sight(adapter: EngineAdapter) -> None:
    command = adapter.command(request)

    assert not any(secret in argument for argument in command.argv)
    assert secret in command.environment.values()


@adapters
def test_the_same_request_is_the_same_command(adapter: EngineAdapter) -> None:
    assert adapter.command(request) == adapter.command(request)


@adapters
def test_its_headers_carry_the_key(adapter: EngineAdapter) -> None:
    assert any(secret in value for value in adapter.headers(secret).values())


@adapters
def test_its_paths_are_paths(adapter: EngineAdapter) -> None:
    assert adapter.readiness_path.startswith("/")
    assert adapter.metrics_path is None or adapter.metrics_path.startswith("/")


@adapters
@given(status=st.integers(100, 599), body=st.binary(max_size=200))
def test_a_stranger_on_its_port_is_never_ready(
    adapter: EngineAdapter, status: int, body: bytes
) -> None:
    assert adapter.readiness(status, body).state is not ReadinessState.READY


@adapters
@given(text=st.text(max_size=500))
def test_metrics_that_say_nothing_are_no_load(adapter: EngineAdapter, text: str) -> None:
    assert adapter.load(text) == EngineLoad()


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
