"""What is refused and what is told, without generating."""

from typing import Any

import pytest

from headrace.engine_server import routes as routes_module
from headrace.sim.served_app import (
    chat_body,
    chat_path,
    completions_path,
    text_body,
)


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        (chat_path, chat_body(model="other"), 404, "model", "not_found"),
        (chat_path, chat_body(messages=[]), 400, "messages", "invalid_request"),
        (chat_path, chat_body(colour="red"), 400, "colour", "invalid_request"),
        (chat_path, b"\xff", 400, None, "invalid_request"),
        (chat_path, chat_body(max_tokens=40_000), 400, "messages", "context_length_exceeded"),
        (chat_path, chat_body(min_tokens=41), 400, "min_tokens", "invalid_request"),
        (
            chat_path,
            chat_body(stop_token_ids=[5, 99_999]),
            400,
            "stop_token_ids",
            "invalid_request",
        ),
        (completions_path, text_body(prompt=""), 400, "prompt", "invalid_request"),
        (completions_path, text_body(prompt=[99_999]), 400, "prompt", "invalid_request"),
        ("/v1/nothing", b"", 404, None, "not_found"),
        ("/v1/models", b"", 405, None, "method_not_allowed"),
    ],
)
async def test_what_cannot_succeed_is_refused_in_openai_shape(
    run_server: Any, path: str, body: bytes, status: int, param: str | None, code: str
) -> None:
    async with run_server() as server:
        answer = await server.post(path, body)
        assert answer.status == status
        assert answer.error["param"] == param
        assert answer.error["code"] == code


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(run_server: Any) -> None:
    async with run_server() as server:
        answer = await server.post(completions_path, text_body(prompt="x" * 40_000))
        error = answer.error
        assert error["code"] == "context_length_exceeded"
        assert (error["prompt_tokens"], error["max_tokens"]) == (40_000, 40)
        assert error["max_model_len"] == 32_768


async def test_a_body_over_the_limit_is_refused(
    run_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "body_bytes_max", 10)
    async with run_server() as server:
        assert (await server.post(chat_path, chat_body())).status == 413


async def test_the_model_is_listed_with_its_context(run_server: Any) -> None:
    async with run_server() as server:
        (card,) = (await server.get("/v1/models")).json["data"]
        assert (card["id"], card["object"]) == ("bytes", "model")
        assert card["max_model_len"] == 32_768
        assert (await server.get("/v1/models/bytes")).json == card
        assert (await server.get("/v1/models/other")).status == 404


async def test_an_unexpected_failure_is_a_500_without_details(
    run_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_server() as server:
        monkeypatch.setattr(server.service, "open", None)
        answer = await server.post(chat_path, chat_body())
        assert answer.status == 500
        assert "NoneType" not in answer.error["message"]


async def test_an_engine_that_hands_no_kv_over_does_not_cut_an_answer_to_one_token(
    run_server: Any,
) -> None:
    async with run_server(api_key="key", wait=False) as server:
        body = chat_body(kv_transfer_params={"do_remote_decode": True})
        refused = await server.post(chat_path, body, {"Authorization": "Bearer key"})
        assert (refused.status, refused.error["param"]) == (400, "kv_transfer_params")
        assert "--kv-transfer" in refused.error["message"]
