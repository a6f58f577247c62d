"""Answers streamed and whole, over a real engine process with the fake runner."""

from typing import Any

import pytest

from headrace.sim.served_app import (
    chat_body,
    chat_path,
    completions_path,
    endless,
    streamed_text,
    text_body,
)


async def test_streamed_text_and_usage_equal_the_unstreamed(run_server: Any) -> None:
    async with run_server() as server:
        for path, make in ((chat_path, chat_body), (completions_path, text_body)):
            whole = (await server.post(path, make())).json
            options = {"include_usage": True}
            stream = await server.post(path, make(stream=True, stream_options=options))
            choice = whole["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert streamed_text(stream.events) == text
            assert stream.events[-1] == "[DONE]"
            usage = stream.events[-2]["usage"]
            assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 40
            assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]
            reasons = [event["choices"][0]["finish_reason"] for event in stream.events[:-2]]
            assert reasons == [None] * (len(reasons) - 1) + ["length"]


async def test_a_stream_has_one_write_a_step_and_ends_cleanly(run_server: Any) -> None:
    async with run_server() as server:
        answer = await server.post(chat_path, chat_body(stream=True))
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert [message["more_body"] for message in answer.sent[1:]][-1] is False
        assert len(answer.sent) <= 40 + 3
        assert answer.events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all("usage" not in event for event in answer.events[:-1])


async def test_a_stop_string_ends_both_kinds_of_answer_at_its_first_match(
    run_server: Any,
) -> None:
    async with run_server() as server:
        text = (await server.post(completions_path, text_body())).json["choices"][0]["text"]
        stop = text[12:15]
        before = text[: text.index(stop)]
        body = text_body(stop=["never", stop], max_tokens=endless)
        whole = (await server.post(completions_path, body)).json
        assert whole["choices"][0] == {
            "text": before,
            "finish_reason": "stop",
            "index": 0,
            "logprobs": None,
            "stop_reason": stop,
        }
        assert whole["usage"]["completion_tokens"] <= 40
        stream = await server.post(
            completions_path, text_body(stop=stop, stream=True, max_tokens=endless)
        )
        assert streamed_text(stream.events) == before
        assert stream.events[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", [None, "stop-string-of-the-answer"])
@pytest.mark.parametrize("path", [chat_path, completions_path])
async def test_log_probabilities_are_those_of_the_text_streamed_and_unstreamed(
    run_server: Any, path: str, stop: str | None
) -> None:
    is_chat = path == chat_path
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
    body = chat_body if is_chat else text_body
    async with run_server() as server:
        whole = (await server.post(path, body(**fields))).json["choices"][0]
        if stop is not None:
            text = whole["message"]["content"] if is_chat else whole["text"]
            fields["stop"] = text[10:13]
            whole = (await server.post(path, body(**fields))).json["choices"][0]
            assert whole["finish_reason"] == "stop"
        events = (await server.post(path, body(**fields, stream=True))).events
    parts = [
        event["choices"][0]["logprobs"]
        for event in events[:-1]
        if event["choices"][0]["logprobs"] is not None
    ]
    if is_chat:
        listed = whole["logprobs"]["content"]
        assert [token for part in parts for token in part["content"]] == listed
        sent = bytes(byte for token in listed for byte in token["bytes"])
        assert sent.decode(errors="replace").startswith(whole["message"]["content"])
        assert all(len(token["top_logprobs"]) == 2 for token in listed)
        assert all(token["top_logprobs"][0]["bytes"] == token["bytes"] for token in listed)
    else:
        listed = whole["logprobs"]
        for column in ("text_offset", "token_logprobs", "tokens", "top_logprobs"):
            assert [value for part in parts for value in part[column]] == listed[column]
        assert listed["text_offset"][0] == 0
        assert listed["text_offset"][-1] < len(whole["text"])
    assert whole["logprobs"] is not None


async def test_usage_can_stand_in_every_chunk(run_server: Any) -> None:
    async with run_server() as server:
        options = {"continuous_usage_stats": True}
        answer = await server.post(chat_path, chat_body(stream=True, stream_options=options))
        counts = [event["usage"]["completion_tokens"] for event in answer.events[:-1]]
        assert counts == sorted(counts)
        assert counts[-1] == 40


async def test_usage_answers_and_metrics_agree(run_server: Any) -> None:
    async with run_server() as server:
        answers = [(await server.post(chat_path, chat_body(seed=seed))).json for seed in range(3)]
        for name in ("prompt", "completion"):
            total = sum(answer["usage"][f"{name}_tokens"] for answer in answers)
            assert await server.metric(f"headrace_engine_{name}_tokens_total") == total
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
        assert await server.metric("headrace_engine_cached_tokens_total") == sum(cached)


async def test_queues_copies_and_bandwidth_are_told(run_server: Any) -> None:
    async with run_server() as server:
        await server.post(chat_path, chat_body())
        text = (await server.get("/metrics")).body.decode()
        for reason in ("capacity", "deferred", "preempted", "grammar"):
            line = f'headrace_engine_waiting_requests_by_reason{{reason="{reason}"}} 0.0'
            assert line in text
        for name in ("saved_tokens_total", "restored_tokens_total", "host_kv_blocks"):
            assert await server.metric(f"headrace_engine_{name}") == 0
        assert "headrace_engine_achieved_bytes_per_second 0.0" in text  # the fake reads nothing


async def test_what_kubernetes_inference_gateway_reads_of_vllm_is_there(run_server: Any) -> None:
    async with run_server() as server:
        blocks = server.service.engine.ready.kv_blocks
        lines = (await server.get("/metrics")).body.decode().splitlines()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f'vllm:{name}{{model_name="bytes"}} 0.0' in lines
        labels = f'block_size="16",model_name="bytes",num_gpu_blocks="{blocks}"'
        assert f"vllm:cache_config_info{{{labels}}} 1.0" in lines


async def test_a_request_of_several_prompts_is_one_in_the_books(run_server: Any) -> None:
    async with run_server() as server:
        body = text_body(prompt=["one", "two"], n=2, max_tokens=3)
        answer = (await server.post(completions_path, body)).json
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == 6
        assert answer["usage"]["completion_tokens"] <= 12
        assert await server.metric("headrace_engine_prompt_tokens_total") == 6
