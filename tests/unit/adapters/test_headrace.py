from dataclasses import replace

import pytest

from headrace.adapters.headrace import HeadraceAdapter
from headrace.adapters.protocol import EngineLoad, LaunchRequest, Readiness, ReadinessState
from headrace.base.errors import ContextLengthExceeded, InvalidRequest
from headrace.engine_server.public_prompts import public_prompts
from headrace.observability import engine_metrics
from headrace.observability.metrics import render
from headrace.spec.public_prompts import PublicMessage, PublicPrompt

adapter = HeadraceAdapter(python="/usr/bin/python")


def request(*extra: str) -> LaunchRequest:
    return LaunchRequest(
        model_path="/models/a.gguf",
        served_model_name="a",
        host="127.0.0.1",
        port=4000,
        api_key="secret",
        extra_arguments=extra,
    )


def test_the_command_is_headrace_serve_in_the_same_python() -> None:
    command = adapter.command(request("--kv-tokens", "4096"))

    assert command.argv == (
        *("/usr/bin/python", "-m", "headrace.cli.main", "serve", "/models/a.gguf"),
        *("--host", "127.0.0.1", "--port", "4000", "--served-model-name", "a"),
        *("--kv-tokens", "4096"),
    )
    assert command.environment == {"HEADRACE_API_KEY": "secret"}


def test_a_deployments_ranks_are_passed_on() -> None:
    for ranks, expected in ((None, []), (1, []), (2, ["--tensor-parallel-size", "2"])):
        command = adapter.command(replace(request(), tensor_parallel=ranks))
        assert list(command.argv[11:]) == expected


@pytest.mark.parametrize("argument", ["--quantize=q4_0", "--public-prompts=/etc/prompts.jsonl"])
def test_an_operator_chooses_the_weights_type_and_what_is_public(argument: str) -> None:
    assert adapter.command(request(argument)).argv[-1] == argument


def test_a_deployments_public_prompts_are_the_lines_that_the_engine_reads() -> None:
    prompts = (PublicPrompt(prompt="Once"), PublicPrompt(messages=(PublicMessage("system", "Be"),)))
    command = adapter.command(replace(request(), public_prompts=prompts))
    assert public_prompts(command.environment["HEADRACE_PUBLIC_PROMPTS"]) == prompts
    assert command.argv == adapter.command(request()).argv


@pytest.mark.parametrize(
    "argument",
    ["--host", "--port=1", "--api-key-env", "--allow-public", "--served-model-name=b"],
)
def test_an_operator_cannot_move_an_engine_out_of_the_platforms_reach(argument: str) -> None:
    with pytest.raises(InvalidRequest, match=argument.partition("=")[0]):
        adapter.command(request(argument))


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            503,
            b'{"state":"loading","progress":0.4,"detail":"loading weights"}',
            Readiness(ReadinessState.LOADING, "loading weights", 0.4),
        ),
        (
            503,
            b'{"state":"restarting","progress":0.0,"detail":"the engine died"}',
            Readiness(ReadinessState.LOADING, "the engine died", 0.0),
        ),
        (
            503,
            b'{"state":"failed","progress":0.0,"detail":"bad model file"}',
            Readiness(ReadinessState.FAILED, "bad model file", 0.0),
        ),
        (
            200,
            b'{"state":"ready","progress":1.0,"detail":"serving"}',
            Readiness(ReadinessState.READY, "serving", 1.0),
        ),
        (503, b'{"state":"draining"}', Readiness(ReadinessState.LOADING, "draining")),
        (503, b'{"state":"ready"}', Readiness(ReadinessState.LOADING, "ready")),
        (200, b'{"state":"dreaming"}', Readiness(ReadinessState.STARTING, "dreaming")),
        (404, b"<html>", Readiness(ReadinessState.STARTING, "an unexpected answer (404)")),
    ],
)
def test_readiness_is_what_readyz_says(status: int, body: bytes, expected: Readiness) -> None:
    assert adapter.readiness(status, body) == expected


def test_load_is_read_from_what_our_engine_server_writes() -> None:
    text = render(
        [
            (engine_metrics.running_requests, 3),
            (engine_metrics.waiting_requests, 2),
            (engine_metrics.kv_usage_ratio, 0.25),
            (engine_metrics.prompt_tokens_total, 1_000),
            (engine_metrics.completion_tokens_total, 2_000),
        ],
        "a-model",
    ).decode()

    assert adapter.load(text) == EngineLoad(
        running_requests=3,
        waiting_requests=2,
        kv_usage=0.25,
        prompt_tokens_total=1_000,
        completion_tokens_total=2_000,
    )


def test_a_prompt_that_is_too_long_keeps_its_numbers() -> None:
    error = adapter.error(
        400,
        b'{"error":{"message":"too long","code":"context_length_exceeded","param":"messages",'
        b'"prompt_tokens":9000,"max_model_len":8192,"max_tokens":16}}',
    )

    assert isinstance(error, ContextLengthExceeded)
    assert error.fields == {"prompt_tokens": 9000, "max_model_len": 8192, "max_tokens": 16}
