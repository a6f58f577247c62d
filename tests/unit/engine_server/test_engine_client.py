import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.base.errors import (
    Conflict,
    ContextLengthExceeded,
    RateLimited,
    SetupError,
    Unavailable,
)
from headrace.engine.request import SamplingParams
from headrace.engine_server.engine_client import (
    EngineClient,
    resubmissions_max,
)
from headrace.engine_server.engine_life import EngineLife, start_attempts_max
from headrace.engine_server.engine_status import EngineState
from headrace.engine_server.messages import Output, Stats
from headrace.engine_server.request_stream import RequestStream
from headrace.engine_server.watchdog import Verdict, Watchdog
from headrace.sim import engine_process
from headrace.sim.runner import FakeModel

if TYPE_CHECKING:
    from tests.unit.engine_server.conftest import MakeSubmit, RunEngine

endless = 30_000  # tokens: more than any of these tests waits for


async def read_all(stream: RequestStream) -> list[Output]:
    outputs: list[Output] = []
    while not outputs or outputs[-1].finish_reason is None:
        outputs += await stream.next()
    return outputs


async def stats_of(client: EngineClient) -> Stats:
    stats = await client.stats()
    assert stats is not None
    return stats


async def wait_for_state(client: EngineClient, state: EngineState) -> None:
    while client.status.state is not state:
        await client.status_change()


def kill_engine(client: EngineClient) -> int:
    pid = client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_tokens_and_usage_are_the_engines(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        outputs = await read_all(client.submit(make_submit(max_tokens=5)))
        expected, _ = FakeModel(vocab_size=256).generate(
            (1, 2), SamplingParams(temperature=0.0, max_tokens=5), 1000
        )
        assert [token for output in outputs for token in output.token_ids] == expected
        assert outputs[-1].finish_reason == "length"
        ended = await usage.find("r", 0)
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (2, 5)
        assert client.streams == ()


async def test_an_abort_frees_the_engines_blocks(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        stream = client.submit(make_submit(max_tokens=endless))
        await stream.next()
        assert (await stats_of(client)).kv_blocks_used > 0
        client.abort("r")
        ended = await usage.find("r", 30)
        assert ended.finish_reason == "abort"
        assert ended.usage.completion_tokens >= 1
        assert (await stats_of(client)).kv_blocks_used == 0


async def test_a_stop_counts_nothing_after_it(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        stream = client.submit(make_submit(max_tokens=endless))
        (first, *_) = await stream.next()
        assert client.stop("r", first)
        assert not client.stop("r", first)
        ended = await usage.find("r", 0)
        assert ended.finish_reason == "stop"
        assert ended.usage.completion_tokens == first.completion_tokens
        assert usage.totals.completion_tokens == first.completion_tokens


async def test_the_engines_refusals_keep_their_type_and_numbers(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, _):
        stream = client.submit(make_submit(prompt=(1,) * 40_000))
        with pytest.raises(ContextLengthExceeded) as caught:
            await stream.next()
        assert caught.value.fields["prompt_tokens"] == 40_000


async def test_the_queue_is_bounded(run_engine: "RunEngine", make_submit: "MakeSubmit") -> None:
    async with run_engine() as (client, _):
        running = [client.submit(make_submit(f"running{i}", endless)) for i in range(8)]
        for stream in running:
            await stream.next()
        for i in range(16):
            client.submit(make_submit(f"waits{i}", endless))
        with pytest.raises(RateLimited):
            await client.submit(make_submit("one too many", endless)).next()
        await running[0].next()


async def test_an_id_is_used_once_at_a_time(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, _):
        client.submit(make_submit(max_tokens=endless))
        with pytest.raises(Conflict):
            client.submit(make_submit())


async def test_a_killed_engine_comes_back_and_fails_only_what_it_had_begun(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        for request_id in ("begun", "waits"):
            usage.begin(request_id)
        begun = client.submit(make_submit("begun", endless))
        await begun.next()
        first_pid = kill_engine(client)
        waits = client.submit(make_submit("waits"))
        with pytest.raises(Unavailable, match="try again"):
            await read_all(begun)
        assert len([i for o in await read_all(waits) for i in o.token_ids]) == 5
        assert client.pid != first_pid
        assert client.restart_count == 1
        assert (await usage.find("begun", 0)).finish_reason == "error"
        assert (await usage.find("begun", 0)).usage.completion_tokens >= 1
        assert (await usage.find("waits", 0)).finish_reason == "length"


async def test_an_engine_that_lost_a_page_of_its_weights_packs_anew(
    run_engine: "RunEngine", tmp_path: Path
) -> None:
    packed = tmp_path / "model.weights"
    packed.touch()
    async with run_engine(packed_path=packed) as (client, _):
        assert client.pid is not None
        os.kill(client.pid, signal.SIGBUS)
        await wait_for_state(client, EngineState.RESTARTING)
        assert "packed weights were removed" in client.status.detail
        assert not packed.exists()
        await client.wait_ready()
        kill_engine(client)
        await wait_for_state(client, EngineState.RESTARTING)
        assert "packed weights" not in client.status.detail


async def test_a_request_whose_reader_left_is_not_sent_to_the_next_engine(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        kill_engine(client)
        await wait_for_state(client, EngineState.RESTARTING)
        client.submit(make_submit("r", endless))
        client.abort("r")
        assert (await usage.find("r", 0)).finish_reason == "abort"
        await client.wait_ready()
        assert (await stats_of(client)).running_requests == 0


async def test_a_request_that_kills_engines_is_given_up(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine("poisoned") as (client, _):
        stream = client.submit(make_submit(prompt=(1,) * (engine_process.poison_rows + 1)))
        with pytest.raises(Unavailable):
            await read_all(stream)
        assert stream.sent_count == 1 + resubmissions_max
        await client.wait_ready()
        assert len(await read_all(client.submit(make_submit("harmless")))) > 0


async def test_an_engine_that_cannot_load_says_why_and_is_not_tried_again(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine("refuse", wait=False) as (client, _):
        with pytest.raises(SetupError, match=r"fake\.gguf is no model"):
            await client.wait_ready()
        with pytest.raises(Unavailable):
            client.submit(make_submit())
        assert client.restart_count == 0


async def test_an_engine_that_ends_without_a_word_is_tried_a_few_times(
    run_engine: "RunEngine",
) -> None:
    async with run_engine("crash", wait=False) as (client, _):
        with pytest.raises(SetupError, match="exit status 3"):
            await client.wait_ready()
        assert client.restart_count == start_attempts_max - 1


async def test_nothing_is_accepted_while_the_first_engine_loads(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine(wait=False) as (client, _):
        with pytest.raises(Unavailable) as caught:
            client.submit(make_submit())
        assert caught.value.retry_after_s is not None


async def test_closing_ends_the_process_and_every_request(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, _):
        stream = client.submit(make_submit(max_tokens=endless))
        await stream.next()
        pid = client.pid
    with pytest.raises(Unavailable, match="shuts down"):
        await read_all(stream)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_requests_choices_come_by_index_and_count_as_one(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        stream = client.submit(make_submit(choice_count=2, more_prompts=((7, 8, 9),)))
        tokens: dict[int, int] = {}
        while stream.is_open:
            for output in await stream.next():
                tokens[output.index] = tokens.get(output.index, 0) + len(output.token_ids)
        assert tokens == {0: 5, 1: 5, 2: 5, 3: 5}
        ended = await usage.find("r", 0)
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (2 + 3, 4 * 5)
        assert client.streams == ()


async def test_a_stop_ends_its_choice_and_the_last_one_the_request(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        stream = client.submit(make_submit(max_tokens=endless, choice_count=2))
        firsts: dict[int, Output] = {}
        while len(firsts) < 2:
            for output in await stream.next():
                firsts.setdefault(output.index, output)
        assert client.stop("r", firsts[0])
        assert not client.stop("r", firsts[0])
        assert client.streams == (stream,)
        assert client.stop("r", firsts[1])
        ended = await usage.find("r", 0)
        assert ended.finish_reason == "stop"
        counted = sum(output.completion_tokens for output in firsts.values())
        assert ended.usage.completion_tokens == counted


async def test_a_request_past_its_deadline_ends(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    async with run_engine() as (client, usage):
        usage.begin("r")
        outputs = await read_all(client.submit(make_submit(max_tokens=endless, timeout_s=0.05)))
        assert outputs[-1].finish_reason == "timeout"
        assert (await usage.find("r", 0)).finish_reason == "timeout"


async def test_a_stopped_engine_is_unready_then_replaced_and_loses_only_what_it_had_begun(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    watchdog = Watchdog(step_timeout_s=0.6, hung_after_s=0.2)
    async with run_engine(watchdog=watchdog) as (client, usage):
        for request_id in ("begun", "queued"):
            usage.begin(request_id)
        begun = client.submit(make_submit("begun", endless))
        await begun.next()
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        queued = client.submit(make_submit("queued"))
        await wait_for_state(client, EngineState.HUNG)
        assert await client.stats(timeout_s=0.01) is None
        with pytest.raises(Unavailable, match="does not answer"):
            client.submit(make_submit("too late"))
        with pytest.raises(Unavailable, match="try again"):
            await read_all(begun)
        assert len([i for o in await read_all(queued) for i in o.token_ids]) == 5
        assert client.pid != pid
        assert (await usage.find("begun", 0)).finish_reason == "error"
        assert (await usage.find("queued", 0)).finish_reason == "length"


async def test_an_engine_that_goes_on_in_time_is_ready_again_and_has_lost_nothing(
    run_engine: "RunEngine", make_submit: "MakeSubmit"
) -> None:
    watchdog = Watchdog(step_timeout_s=60.0, hung_after_s=0.2)
    async with run_engine(watchdog=watchdog) as (client, _):
        stream = client.submit(make_submit(max_tokens=endless))
        await stream.next()
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await wait_for_state(client, EngineState.HUNG)
        os.kill(pid, signal.SIGCONT)
        await wait_for_state(client, EngineState.READY)
        await stream.next()
        assert (client.pid, client.restart_count) == (pid, 0)


async def test_a_watchdog_that_fails_watches_again(run_engine: "RunEngine") -> None:
    class FailsOnce(Watchdog):
        judged = 0

        def judge(self, stats: Stats | None, now_s: float) -> Verdict:
            self.judged += 1
            if self.judged == 1:
                raise KeyError
            return super().judge(stats, now_s)

    watchdog = FailsOnce(60.0, hung_after_s=0.1)
    async with run_engine(watchdog=watchdog) as (client, _):
        while watchdog.judged < 2:
            await client.stats()
        assert client.loop_failures["watchdog"] == 1


async def test_an_engine_that_nobody_keeps_any_more_is_a_failed_one(
    run_engine: "RunEngine", monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_engine() as (client, _):

        def fail(*_: object, last: bool) -> None:
            raise KeyError("what nobody foresaw")

        monkeypatch.setattr(EngineLife, "_on_death", fail)
        kill_engine(client)
        await wait_for_state(client, EngineState.FAILED)
        assert "KeyError" in client.status.detail
        assert client.loop_failures["engine_supervisor"] == 1
