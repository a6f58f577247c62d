import asyncio

import msgspec
import pytest

from headrace.base.errors import Conflict, NotFound
from headrace.engine_server import usage_log
from headrace.engine_server.messages import Output
from headrace.engine_server.usage_log import UsageLog


def output(prompt: int = 3, cached: int = 1, completion: int = 2) -> Output:
    return Output("r", [1], "stop", prompt, cached, completion)


async def test_an_ended_requests_usage_is_exact() -> None:
    log = UsageLog()
    log.begin("r")
    log.end("r", output(), "stop")
    ended = await log.find("r", 0)
    assert ended.finish_reason == "stop"
    assert ended.usage.total_tokens == 5
    assert ended.usage.prompt_tokens_details.cached_tokens == 1
    assert (log.totals.prompt_tokens, log.totals.completion_tokens) == (3, 2)
    assert log.ended_counts == {"stop": 1}


@pytest.mark.parametrize(("accepted", "refused"), [(3, 0), (0, 2), (4, 1)])
async def test_drafts_are_named_in_openais_words(accepted: int, refused: int) -> None:
    log = UsageLog()
    log.begin("r")
    last = Output("r", [1], "stop", 3, 1, 9, accepted_drafts=accepted, refused_drafts=refused)
    log.end("r", last, "stop")
    usage = (await log.find("r", 0)).usage
    told = msgspec.json.decode(msgspec.json.encode(usage))["completion_tokens_details"]
    assert told["accepted_prediction_tokens"] == accepted
    assert told["rejected_prediction_tokens"] == refused
    assert usage.total_tokens == 12


def test_without_drafts_none_are_named() -> None:
    assert b"prediction" not in msgspec.json.encode(usage_log.usage_of(output()))


async def test_a_question_waits_for_the_end() -> None:
    log = UsageLog()
    log.begin("r")
    asked = asyncio.create_task(log.find("r", 30))
    await asyncio.sleep(0)
    log.end("r", None, "abort")
    assert (await asked).usage.total_tokens == 0


async def test_a_question_does_not_wait_for_ever() -> None:
    log = UsageLog()
    log.begin("r")
    with pytest.raises(NotFound, match="still runs"):
        await log.find("r", 0)


async def test_a_refused_or_unknown_request_is_not_found() -> None:
    log = UsageLog()
    log.begin("refused")
    log.end("refused", None, "rejected")
    for request_id in ("refused", "unknown"):
        with pytest.raises(NotFound):
            await log.find(request_id, 30)
    assert log.ended_counts == {}


def test_a_live_id_is_not_used_twice() -> None:
    log = UsageLog()
    log.begin("r")
    with pytest.raises(Conflict):
        log.begin("r")
    log.forget("r")
    log.begin("r")


async def test_only_the_last_ended_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "ended_requests_max", 2)
    log = UsageLog()
    for request_id in ("a", "b", "c"):
        log.begin(request_id)
        log.end(request_id, output(), "stop")
    with pytest.raises(NotFound):
        await log.find("a", 0)
    assert (await log.find("b", 0)).request_id == "b"
    assert log.totals.prompt_tokens == 9
