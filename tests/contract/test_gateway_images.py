"""Images: passed on where they can be seen, fetched through the guard, refused in clear words."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import replace

from headrace.http.asgi import Receive, Scope, Send, send_bytes
from headrace.protocol.images import data_url
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import (
    GatewaySite,
    add_model,
    gateway_site,
    make_id,
    model_name,
    serving,
)
from headrace.spec.deployments import Replica
from headrace.spec.models import Model, ModelVersion

png = b"\x89PNG\r\n\x1a\n" + bytes(64)
inline = data_url("image/png", png)
chat_path = "/v1/chat/completions"


class Pictures:
    """A server with pictures, by path."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        self.asked.append(path)
        await asyncio.sleep(0)
        if path == "/moved":
            await send_bytes(send, 302, b"", [(b"location", b"/a.png")])
        elif path == "/page":
            await send_bytes(send, 200, b"<html>", [(b"content-type", b"image/png")])
        elif path == "/large":
            await send_bytes(send, 200, png + bytes(11 * 1024 * 1024), [])
        elif path == "/a.png":
            await send_bytes(send, 200, png, [(b"content-type", b"image/png")])
        else:
            await send_bytes(send, 404, b"", [])


def content(url: str, **image: str) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url, **image}},
    ]


@asynccontextmanager
async def asking(site: GatewaySite) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {site.api_key}"}
    async with aiohttp.ClientSession(site.url, headers=headers) as client:
        yield client


async def ask(site: GatewaySite, parts: object, **fields: object) -> tuple[int, Any]:
    body = {"model": model_name, "messages": [{"role": "user", "content": parts}], **fields}
    async with asking(site) as client, client.post(chat_path, json=body) as answer:
        return answer.status, json.loads(await answer.read())


def sent(site: GatewaySite) -> list[Any]:
    """The parts that the engine got last."""
    engine = next(engine for engine in site.engines if engine.seen)
    parts: list[Any] = json.loads(engine.seen[-1].body)["messages"][-1]["content"]
    return parts


async def test_a_data_url_is_passed_on_as_it_came(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()], engine="vllm") as site:
        status, _ = await ask(site, content(inline, detail="low"))
        (settlement,) = await site.settlements(1)
        assert sent(site) == content(inline, detail="low")
    assert status == 200
    assert settlement.usage.completion_tokens == 4


async def test_a_remote_image_is_fetched_by_the_gateway_and_its_address_stays_here(
    tmp_path: Path,
) -> None:
    pictures = Pictures()
    async with (
        serving(pictures) as url,
        gateway_site(
            tmp_path, [FakeEngine()], engine="vllm", media_hosts=[urlsplit(url).hostname or ""]
        ) as site,
    ):
        status, _ = await ask(site, content(f"{url}/a.png"))
        assert status == 200
        assert sent(site) == content(inline)
        for path, words in (
            ("/moved", "302"),
            ("/page", "none of"),
            ("/large", "bytes"),
            ("/gone", "404"),
        ):
            status, answer = await ask(site, content(url + path))
            assert (status, answer["error"]["param"]) == (400, "messages[0].content[1].image_url")
            assert words in answer["error"]["message"]
            assert url not in answer["error"]["message"]
        settlements = await site.settlements(1)
    assert len(settlements) == len(site.engines[0].seen) == 1  # nothing was reserved for the others
    assert pictures.asked == ["/a.png", "/moved", "/page", "/large", "/gone"]


refused_urls = (
    "http://127.0.0.1:1/a.png", "https://127.0.0.1/a.png", "https://localhost/a.png",
    "https://169.254.169.254/latest/meta-data", "https://[::1]/a", "file:///etc/passwd",
    "ftp://example.com/a.png", "/a.png", "data:text/html;base64,PGh0bWw+",
    "data:image/png;base64,PGh0bWw+", "data:image/png,abc", "data:image/png;base64,%%%",
)  # fmt: skip


async def test_what_is_no_image_of_the_public_internet_is_refused(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()], engine="vllm") as site:
        answers = [await ask(site, content(url)) for url in refused_urls]
    assert {status for status, _ in answers} == {400}
    params = {answer["error"]["param"] for _, answer in answers}
    assert params == {"messages[0].content[1].image_url"}
    assert site.engines[0].seen == []


async def test_a_part_cannot_hide_behind_escapes(tmp_path: Path) -> None:
    body = json.dumps(
        {
            "model": model_name,
            "messages": [{"role": "user", "content": content("https://10.0.0.1/")}],
        }
    ).replace("image_url", "\\u0069mage_url")
    async with (
        gateway_site(tmp_path, [FakeEngine()], engine="vllm") as site,
        asking(site) as client,
        client.post(chat_path, data=body) as answer,
    ):
        assert answer.status == 400
    assert site.engines[0].seen == []


async def test_a_model_that_takes_none_says_so(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()]) as site:
        status, answer = await ask(site, content(inline))
    assert (status, answer["error"]["param"]) == (400, "messages[0].content[1].image_url")
    assert answer["error"]["message"] == "This model takes no images; send text only."
    assert site.engines[0].seen == []


async def test_a_version_that_is_declared_blind_is_not_asked(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()], engine="vllm") as site:
        store = site.database.store
        version = store.get(ModelVersion, make_id("ver", 1))
        store.update(replace(version, capabilities=("chat", "tools")))
        await site.gateway.follower.load()
        status, _ = await ask(site, content(inline))
        assert status == 400
        store.update(replace(store.get(ModelVersion, version.id), capabilities=("chat", "vision")))
        await site.gateway.follower.load()
        status, _ = await ask(site, content(inline))
        assert status == 200


async def test_only_replicas_that_see_get_images_and_fallbacks_that_see_go_first(
    tmp_path: Path,
) -> None:
    blind, seeing, other = FakeEngine(), FakeEngine(), FakeEngine()
    async with gateway_site(tmp_path, [blind, seeing]) as site, serving(other) as address:
        store = site.database.store
        replica = store.get(Replica, make_id("rep", 2))
        store.update(replace(replica, engine="vllm"))
        await site.gateway.follower.load()
        for _ in range(6):
            assert (await ask(site, content(inline)))[0] == 200
        assert (len(blind.seen), len(seeing.seen)) == (0, 6)
        add_model(site.database, "eyes", [(address, "")], "vllm", number=2)
        store.update(replace(store.get(Replica, replica.id), engine="headrace"))
        store.update(replace(store.get(Model, make_id("mod", 1)), fallbacks=("eyes",)))
        await site.gateway.follower.load()
        assert (await ask(site, content(inline)))[0] == 200
        assert len(other.seen) == 1


async def test_anthropics_and_the_responses_api_have_images_too(tmp_path: Path) -> None:
    async with (
        gateway_site(tmp_path, [FakeEngine()], engine="vllm") as site,
        asking(site) as client,
    ):
        source = {"type": "base64", "media_type": "image/png", "data": inline.partition(",")[2]}
        blocks = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
        turn = {"role": "user", "content": blocks}
        body = {"model": model_name, "max_tokens": 9, "messages": [turn]}
        async with client.post("/v1/messages", json=body) as answer:
            assert answer.status == 200, await answer.text()
        assert sent(site) == content(inline)
        parts = [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": inline},
        ]
        body = {
            "model": model_name,
            "input": [{"type": "message", "role": "user", "content": parts}],
        }
        async with client.post("/v1/responses", json=body) as answer:
            assert answer.status == 200, await answer.text()
        assert sent(site) == content(inline)


async def test_too_many_images_are_refused(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, [FakeEngine()], engine="vllm") as site:
        status, answer = await ask(site, content(inline)[1:] * 33)
    assert (status, answer["error"]["param"]) == (400, "messages")
