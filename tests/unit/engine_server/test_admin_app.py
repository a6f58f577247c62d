"""The operator's listener over a real engine process with the fake runner.

The fake runner's tokens are a function of the history and of the adapter's content, so that an
answer tells which adapter, if any, its request went through.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig, LoadAdapter
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.sim import engine_process
from headrace.sim.adapter_files import write_adapter
from headrace.sim.served_app import (
    Exchange,
    ServedApp,
    chat_body,
    chat_path,
    completions_path,
    endless,
    text_body,
)
from headrace.sim.tiny_model import tiny_spec

key = {"Authorization": "Bearer operator"}


@dataclass(frozen=True)
class Site:
    """A server, and its operator's listener."""

    api: ServedApp
    admin: ServedApp

    async def ask(self, path: str, method: str = "POST", **body: Any) -> Exchange:
        data = json.dumps(body).encode() if body else b""
        exchange, task = self.admin.start(method, path, data, key)
        await task
        return exchange

    async def load(self, name: str, path: Path, **fields: Any) -> Exchange:
        wanted = {"lora_name": name, "lora_path": str(path), **fields}
        return await self.ask("/v1/load_lora_adapter", **wanted)

    async def unload(self, name: str) -> Exchange:
        return await self.ask("/v1/unload_lora_adapter", lora_name=name)

    async def text(self, model: str = "bytes", **fields: Any) -> str:
        answer = await self.api.post(completions_path, text_body(model=model, **fields))
        assert answer.status == 200, answer.body
        text: str = answer.json["choices"][0]["text"]
        return text

    async def state(self) -> Any:
        return (await self.ask("/state", "GET")).json

    async def running(self, model: str = "bytes") -> tuple[Exchange, "asyncio.Task[None]"]:
        """A streamed request without end, of which something has come."""
        body = text_body(model=model, max_tokens=endless, stream=True)
        exchange, task = self.api.start("POST", completions_path, body)
        await asyncio.wait_for(exchange.answered.wait(), 30)
        return exchange, task


@pytest.fixture
def run_site(byte_model: Path, engine_config: EngineConfig) -> Any:
    @asynccontextmanager
    async def run(**changes: Any) -> AsyncIterator[Site]:
        engine = msgspec.structs.replace(engine_config, **{"adapters_max": 2, **changes})
        service = ModelService(
            ServiceConfig(byte_model, "bytes", engine),
            SystemClock(),
            command=engine_process.command(),
        )
        try:
            await service.start()
            await service.engine.wait_ready()
            app = EngineServerApp(service, None)
            yield Site(
                ServedApp(app, service), ServedApp(app, service, asked=app.admin("operator"))
            )
        finally:
            await service.close()

    return run


@pytest.fixture
def adapters(tmp_path: Path) -> list[Path]:
    return [write_adapter(tmp_path / f"a{seed}", tiny_spec, seed=seed) for seed in range(3)]


async def test_every_route_asks_for_the_operators_key(run_site: Any) -> None:
    async with run_site() as site:
        for headers in ({}, {"Authorization": "Bearer other"}):
            refused = await site.admin.get("/state", headers)
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")


async def test_an_adapter_is_a_model_beside_its_base(run_site: Any, adapters: list[Path]) -> None:
    async with run_site() as site:
        plain = await site.text()
        loaded = await site.load("sql", adapters[0])
        assert loaded.body == b"Success: LoRA adapter 'sql' added successfully."
        adapted = await site.text("bytes:sql")
        assert adapted != plain
        assert await site.text("sql") == adapted, "its name alone is enough"
        assert await site.text() == plain
        base, card = (await site.api.get("/v1/models")).json["data"]
        assert (base["id"], card["id"], card["parent"]) == ("bytes", "bytes:sql", "bytes")
        assert card["max_model_len"] == base["max_model_len"]
        assert (await site.api.get("/v1/models/bytes:sql")).json == card
        (entry,) = (await site.state())["adapters"]
        assert entry["version"] == card["adapter_version"]
        assert (await site.unload("sql")).status == 200
        gone = await site.api.post(completions_path, text_body(model="bytes:sql"))
        assert (gone.status, gone.error["param"]) == (404, "model")
        assert (await site.unload("sql")).status == 404


async def test_an_answer_is_the_same_among_other_adapters(
    run_site: Any, adapters: list[Path]
) -> None:
    async with run_site(adapters_max=3) as site:
        names = ["bytes"]
        for number, path in enumerate(adapters):
            await site.load(f"a{number}", path)
            names.append(f"bytes:a{number}")
        alone = [await site.text(name, prompt=f"{name} x") for name in names]
        assert len(set(alone)) == len(names)
        several = names * 4
        together = await asyncio.gather(*(site.text(n, prompt=f"{n} x") for n in several))
        assert list(together) == alone * 4


async def test_kv_of_an_adapter_is_no_hit_for_another_or_for_other_content_of_its_name(
    run_site: Any, adapters: list[Path]
) -> None:
    prompt = "the same prompt of more than two blocks of sixteen tokens"

    async def cached(site: Site, model: str) -> int:
        body = text_body(model=model, prompt=prompt, max_tokens=1)
        usage = (await site.api.post(completions_path, body)).json["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    async with run_site() as site:
        await site.load("a", adapters[0])
        await site.load("b", adapters[1])
        assert await cached(site, "bytes") == 0
        assert await cached(site, "bytes:a") == 0
        assert await cached(site, "bytes:b") == 0
        for model in ("bytes", "bytes:a", "bytes:b"):
            assert await cached(site, model) > 0
        await site.unload("b")
        assert (await site.load("a", adapters[2], load_inplace=True)).status == 200
        assert await cached(site, "bytes:a") == 0
        assert (await site.load("c", adapters[2])).status == 200
        assert await cached(site, "bytes:c") > 0, "the same content under another name"


async def test_a_running_request_keeps_its_adapter_until_it_ends(
    run_site: Any, adapters: list[Path]
) -> None:
    async with run_site(adapters_max=1) as site:
        await site.load("sql", adapters[0])
        exchange, task = await site.running("bytes:sql")
        await site.unload("sql")
        full = await site.load("other", adapters[1])
        assert (full.status, full.error["code"]) == (409, "conflict")
        assert "when their requests end" in full.error["message"]
        exchange.gone.set()
        await task
        while (await site.load("other", adapters[1])).status == 409:
            pass  # each try waits for a turn of the engine's loop
        assert await site.text("bytes:other")


async def test_routers_see_which_adapters_are_used(run_site: Any, adapters: list[Path]) -> None:
    async def samples(site: Site) -> list[str]:
        lines = (await site.api.get("/metrics")).body.decode().splitlines()
        kinds = ("headrace_engine_adapter", "vllm:lora_requests_info{")
        return [line.rpartition(" ")[0] for line in lines if line.startswith(kinds)]

    async with run_site() as site:
        await site.load("sql", adapters[0])
        exchange, task = await site.running("bytes:sql")
        used = await samples(site)
        assert 'headrace_engine_adapter_requests{adapter="sql"}' in used
        labels = 'max_lora="2",model_name="bytes",running_lora_adapters="sql"'
        assert f'vllm:lora_requests_info{{{labels},waiting_lora_adapters=""}}' in used
        assert await site.api.metric("headrace_engine_adapters_loaded") == 1
        exchange.gone.set()
        await task
    async with run_site(adapters_max=0) as site:
        assert await samples(site) == []


async def test_what_cannot_be_loaded_is_refused_and_takes_no_place(
    run_site: Any, adapters: list[Path], tmp_path: Path
) -> None:
    async with run_site(adapters_max=1, adapter_rank_max=4) as site:
        wide = write_adapter(tmp_path / "wide", tiny_spec, seed=1, rank=8)
        for path in (tmp_path / "nowhere", wide, tmp_path):
            refused = await site.load("sql", path)
            assert (refused.status, refused.error["type"]) == (400, "invalid_request_error")
        assert (await site.load("s q l", adapters[0])).error["param"] == "lora_name"
        assert (await site.load("sql", Path())).status == 400
        broken = await site.ask("/v1/load_lora_adapter", lora_nam="x")
        assert (broken.status, broken.error["type"]) == (400, "invalid_request_error")
        assert (await site.load("sql", adapters[0])).status == 200
        taken = await site.load("sql", adapters[1])
        assert (taken.status, taken.error["param"]) == (409, "lora_name")
        assert (await site.load("other", adapters[1])).status == 409


async def test_a_server_without_room_for_adapters_says_so(
    run_site: Any, adapters: list[Path]
) -> None:
    async with run_site(adapters_max=0) as site:
        refused = await site.load("sql", adapters[0])
        assert (refused.status, "--max-loras" in refused.error["message"]) == (400, True)


async def test_adapters_of_the_start_and_later_ones_are_there_after_a_restart(
    run_site: Any, adapters: list[Path]
) -> None:
    first = LoadAdapter("", "first", str(adapters[0]))
    async with run_site(adapters=(first,)) as site:
        answers = [await site.text("bytes:first")]
        await site.load("late", adapters[1])
        answers.append(await site.text("bytes:late"))
        await site.ask("/sleep?level=2")
        await site.ask("/wake_up")
        assert [await site.text("bytes:first"), await site.text("bytes:late")] == answers
        (adapters[1] / "adapter_config.json").unlink()
        await site.ask("/sleep?level=2")
        await site.ask("/wake_up")
        names = [entry["name"] for entry in (await site.state())["adapters"]]
        assert names == ["first"], "a later one that is gone does not keep the engine from starting"


@pytest.mark.parametrize("level", [1, 2])
async def test_an_engine_sleeps_and_wakes(run_site: Any, level: int) -> None:
    async with run_site() as site:
        before = await site.text()
        asleep = (await site.ask(f"/sleep?level={level}")).json
        assert (asleep["state"], asleep["sleep_level"]) == ("sleeping", level)
        assert (site.api.service.engine.pid is None) is (level == 2)
        assert (await site.ask("/is_sleeping", "GET")).json == {"is_sleeping": True}
        refused = await site.api.post(chat_path, chat_body())
        assert (refused.status, refused.error["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        ready = await site.api.get("/readyz")
        assert (ready.status, ready.json["state"]) == (503, "sleeping")
        awake = (await site.ask("/wake_up")).json
        assert (awake["state"], awake["sleep_level"]) == ("ready", 0)
        assert await site.text() == before
        assert site.api.service.engine.restart_count == 0


async def test_sleep_can_become_deeper_and_waking_twice_is_nothing(run_site: Any) -> None:
    async with run_site() as site:
        assert (await site.ask("/wake_up")).json["state"] == "ready"
        await site.ask("/sleep")
        assert (await site.ask("/sleep?level=2")).json["sleep_level"] == 2
        assert (await site.ask("/sleep?level=1")).json["sleep_level"] == 2
        await site.ask("/wake_up")
        assert (await site.ask("/wake_up")).json["state"] == "ready"
        assert (await site.ask("/sleep?level=3")).error["param"] == "level"
        assert (await site.ask("/sleep?level=nan")).error["param"] == "level"


async def test_a_sleep_does_not_end_requests_unless_it_is_told_to(run_site: Any) -> None:
    async with run_site() as site:
        exchange, task = await site.running()
        waited = await site.ask("/sleep?timeout_s=0.1")
        assert (waited.status, waited.error["code"]) == (409, "conflict")
        assert (await site.state())["sleep_level"] == 0
        assert await site.text(), "it takes requests again"
        assert (await site.ask("/sleep?mode=abort")).json["sleep_level"] == 1
        await task
        assert exchange.events[-1]["error"]["code"] == "unavailable"


async def test_a_paused_server_refuses_until_it_is_resumed(run_site: Any) -> None:
    async with run_site() as site:
        exchange, task = await site.running()
        assert (await site.ask("/pause?mode=keep")).error["param"] == "mode"
        assert (await site.ask("/pause?timeout_s=0.1")).status == 409
        assert (await site.ask("/is_paused", "GET")).json == {"is_paused": True}
        refused = await site.api.post(chat_path, chat_body())
        assert (refused.status, int(refused.headers["retry-after"]) >= 1) == (503, True)
        assert (await site.ask("/pause?mode=abort")).json["running_requests"] == 0
        await task
        assert exchange.events[-1]["error"]["code"] == "unavailable"
        assert (await site.ask("/resume")).json["paused"] is False
        assert await site.text()


async def test_a_drained_server_is_unready(run_site: Any) -> None:
    async with run_site() as site:
        assert (await site.ask("/drain")).json["draining"] is True
        assert (await site.api.get("/readyz")).json["state"] == "draining"
        assert (await site.api.post(chat_path, chat_body())).status == 503


async def test_a_request_is_ended_by_its_id(run_site: Any) -> None:
    async with run_site() as site:
        exchange, task = await site.running()
        (stream,) = site.api.service.engine.streams
        await site.ask("/abort/unknown")
        await site.ask(f"/abort/{stream.submit.request_id}")
        await task
        assert exchange.events[-1]["error"]["code"] == "request_aborted"


async def test_the_prefix_cache_is_forgotten_whole_or_by_salt(run_site: Any) -> None:
    prompt = "a prompt that is longer than two blocks of sixteen tokens"

    async def cached(site: Site) -> int:
        answer = await site.api.post(completions_path, text_body(prompt=prompt, max_tokens=1))
        count: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    async with run_site() as site:
        await cached(site)
        assert await cached(site) > 0
        await site.ask("/reset_prefix_cache", cache_salt="another tenant")
        assert await cached(site) > 0
        await site.ask("/reset_prefix_cache", cache_salt="")
        assert await cached(site) == 0
        await site.ask("/reset_prefix_cache")
        assert await cached(site) == 0
        assert (await site.ask("/reset_prefix_cache", salt="x")).status == 400
