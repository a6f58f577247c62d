"""Two servers, each with a real engine process: the prompt at one, the answer from the other."""

from typing import Any

import msgspec
import pytest

from headrace.base.errors import InvalidRequest
from headrace.engine_server.kv_params import with_transfer
from headrace.engine_server.messages import EngineConfig, KvTransfers
from headrace.protocol.kv_transfer import KvTransferParams
from headrace.sim.served_app import ServedApp, chat_body, chat_path, completions_path

headers = {"Authorization": "Bearer key", "X-Headrace-Cache-Salt": "a tenant"}
question = (
    "a question that is longer than some blocks of sixteen tokens each, so that some are full"
)
messages = [{"role": "user", "content": question}]


@pytest.fixture
def engine_config(engine_config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(
        engine_config, prefix_key=b"k" * 32, kv_transfers=KvTransfers("127.0.0.1", 0, 30.0)
    )


async def post(server: ServedApp, **fields: Any) -> Any:
    body = chat_body(messages=messages, temperature=0, max_tokens=8, **fields)
    answer = await server.post(chat_path, body, headers)
    assert answer.status == 200, answer.json
    return answer.json


async def prefill(server: ServedApp) -> dict[str, Any]:
    answer = await post(server, kv_transfer_params={"do_remote_decode": True}, n=3, stop=["a"])
    assert len(answer["choices"]) == 1
    params: dict[str, Any] = answer["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    return params


async def metric(server: ServedApp, name: str) -> dict[str, float]:
    text = (await server.get("/metrics", headers)).body.decode()
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return {line.split('result="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


@pytest.mark.parametrize("way", ["shared memory", "tcp"])
async def test_a_split_request_is_answered_as_a_whole_one(run_server: Any, way: str) -> None:
    async with run_server(api_key="key") as ours, run_server(api_key="key") as theirs:
        whole = await post(ours, seed=7)
        params = await prefill(ours)
        if way == "tcp":
            params |= {"remote_engine_id": "0" * 32, "remote_host": "127.0.0.1"}
        split = await post(theirs, seed=7, kv_transfer_params=params)
        assert split["choices"] == whole["choices"]
        assert split["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
        assert await metric(theirs, "headrace_engine_kv_transfers_total") == {"imported": 1}
        given = await metric(ours, "headrace_engine_kv_transfers_total")
        assert given == {"exported": 1, "given": 1}
        again = await post(theirs, seed=7, kv_transfer_params=params)  # the lease is gone
        assert again["choices"] == whole["choices"]
        assert (await metric(theirs, "headrace_engine_kv_transfers_total"))["gone"] == 1


async def test_a_giver_that_is_dead_costs_the_prompt_and_no_request(run_server: Any) -> None:
    async with run_server(api_key="key") as theirs:
        async with run_server(api_key="key") as ours:
            params = await prefill(ours)
            whole = await post(ours)
        split = await post(theirs, kv_transfer_params={**params, "remote_host": "127.0.0.1"})
        assert split["choices"] == whole["choices"]
        assert await metric(theirs, "headrace_engine_kv_transfers_total") == {"unreachable": 1}


async def test_what_is_asked_without_the_key_is_refused(run_server: Any) -> None:
    async with run_server(wait=False) as server:
        body = chat_body(kv_transfer_params={"do_remote_decode": True})
        refused = await server.post(chat_path, body)
        assert (refused.status, refused.error["param"]) == (400, "kv_transfer_params")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (chat_path, {"messages": messages, "stream": True}),
        (completions_path, {"prompt": ["a", "b"]}),
    ],
)
async def test_half_a_request_is_whole_and_one(
    run_server: Any, path: str, fields: dict[str, Any]
) -> None:
    async with run_server(api_key="key", wait=False) as server:
        body = {"model": "bytes", "kv_transfer_params": {"do_remote_decode": True}, **fields}
        assert (await server.post(path, msgspec.json.encode(body), headers)).status == 400


def test_a_source_that_lacks_its_address_is_the_callers_fault(make_submit: Any) -> None:
    with pytest.raises(InvalidRequest, match="remote_engine_id"):
        with_transfer(make_submit(), KvTransferParams(do_remote_prefill=True))
