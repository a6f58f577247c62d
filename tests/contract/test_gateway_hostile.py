"""Bytes that no client library sends: every one ends in a plain refusal, none in a 5xx."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from headrace.gateway.route_table import Access
from headrace.sim.engine import FakeEngine
from headrace.sim.gateway_site import GatewaySite, gateway_site, model_name

chat_path = "/v1/chat/completions"
message = '{"role":"user","content":"hi"}'
good = f'{{"model":"{model_name}","messages":[{message}]}}'


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[GatewaySite]:
    async with gateway_site(tmp_path, [FakeEngine()]) as running:
        yield running


async def raw(site: GatewaySite, data: bytes) -> bytes:
    """Everything that the gateway answers to these bytes and a closed write side."""
    address = urlsplit(site.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(data.replace(b"KEY", site.api_key.encode()))
        writer.write_eof()
        return await reader.read()
    except ConnectionResetError:  # cut while we still wrote
        return b""
    finally:
        writer.close()


def request(head: str, body: str = "") -> bytes:
    return (head.replace("\n", "\r\n") + "\r\n\r\n" + body).encode("latin-1")


auth = "Authorization: Bearer KEY\nHost: x"
length = f"Content-Length: {len(good)}"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a plain port
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n" * 1000,
        request("GET /v1/models HTTP/9.9\n" + auth),
        request("GET /v1/models HTTP/1.1\nHost: x\n" + "A: b\n" * 20_000 + "C: d"),
        request("GET /v1/models HTTP/1.1\nHost: x\nA: " + "b" * 200_000),
        request("GET /" + "a" * 200_000 + " HTTP/1.1\nHost: x"),
        request(f"POST {chat_path} HTTP/1.1\n{auth}\nContent-Length: -1", good),
        request(f"POST {chat_path} HTTP/1.1\n{auth}\nContent-Length: 99999999999999999999999"),
        request(f"POST {chat_path} HTTP/1.1\n{auth}\n{length}\nContent-Length: 3", good),
        request(f"POST {chat_path} HTTP/1.1\n{auth}\n{length}\nTransfer-Encoding: chunked", good),
        request(f"POST {chat_path} HTTP/1.1\n{auth}\nTransfer-Encoding: chunked", "zz\r\n"),
        request(
            f"POST {chat_path} HTTP/1.1\n{auth}\nTransfer-Encoding: chunked", "f" * 40 + "\r\n"
        ),
        request(
            f"POST {chat_path} HTTP/1.1\n{auth}\nTransfer-Encoding: gzip, chunked", "0\r\n\r\n"
        ),
        request("GET /v1/models HTTP/1.1\nHost: x\nAuthorization : Bearer KEY"),
        request("GET /v1/models HTTP/1.1\nHost: x\nX: a\x00b"),
        request("GET http://169.254.169.254/v1/models HTTP/1.1\nHost: 169.254.169.254"),
        request("GET //v1/models HTTP/1.1\n" + auth),
        request("GET /v1/models/../../metrics HTTP/1.1\n" + auth),
        request("GET /v1/models/%2e%2e/%00%ff%fe HTTP/1.1\n" + auth),
        request("GET /v1/models/\xff\xfe HTTP/1.1\n" + auth),
        request("BREW /v1/models HTTP/1.1\n" + auth),
        request("CONNECT evil:443 HTTP/1.1\n" + auth),
        request("OPTIONS * HTTP/1.1\n" + auth),
        request(f"GET /v1/models HTTP/1.1\nHost: x\nAuthorization: Bearer {'hr_' * 5000}"),
        request("GET /v1/models HTTP/1.1\nHost: x\nAuthorization: Bearer \xff\xfe"),
        request("GET /v1/models HTTP/1.1\nHost: x\nAuthorization: Bearer hr_\u00b2_\u00b3"),
    ],
)
async def test_malformed_http_is_refused_or_cut(site: GatewaySite, data: bytes) -> None:
    answer = await raw(site, data)
    assert answer == b"" or answer.split(b" ")[1][:1] == b"4", answer[:200]
    assert b"Traceback" not in answer
    assert site.engines[0].seen == []
    async with aiohttp.ClientSession(site.url) as client, client.get("/livez") as alive:
        assert alive.status == 200


async def post(site: GatewaySite, body: bytes, **headers: str) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {site.api_key}", **headers}
    async with (
        aiohttp.ClientSession(site.url) as client,
        client.post(chat_path, data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    "fields",
    [
        '"max_tokens":1e999',
        '"max_tokens":' + "9" * 5000,
        '"max_tokens":2147483647,"seed":99999999999999999999999999',
        '"max_tokens":0',
        '"max_tokens":-0.0',
        '"max_tokens":true',
        '"temperature":NaN',
        '"temperature":-1e-320',
        '"temperature":1e400',
        '"stop":["' + "x" * 5000 + '"]',
        '"stop":' + "[" * 5000 + "]" * 5000,
        '"metadata":' + '{"a":' * 50_000 + "1" + "}" * 50_000,
        '"user":"\\ud800"',
        '"model":"\\ud800\\udc00\\udfff"',
        '"model":"\\u0000"',
        '"model":""',
        '"messages":[{"role":"user","content":"\\udfff"}],"model":"x"',
        '"__class__":"x"',
        '"\\ud800":1',
        '"":1',
        '"stream":"true"',
        '"stream_options":{"include_usage":true}',
    ],
)
async def test_absurd_values_are_refused_with_words(site: GatewaySite, fields: str) -> None:
    status, body = await post(site, (good[:-1] + "," + fields + "}").encode())
    assert status in (400, 402, 404), (status, body)
    assert body["error"]["message"]
    assert len(json.dumps(body)) < 20_000  # an error does not send a huge value back


async def test_of_a_field_that_comes_twice_gateway_and_engine_believe_the_same_one(
    site: GatewaySite,
) -> None:
    twice = good[:-1] + f',"max_tokens":1000,"max_tokens":2,"model":"x","model":"{model_name}"}}'
    status, _ = await post(site, twice.encode())
    assert status == 200
    sent = json.loads(site.engines[0].seen[-1].body, object_pairs_hook=list)
    assert dict(sent)["max_tokens"] == 2
    assert len(sent) == len(dict(sent))
    (settlement,) = await site.settlements(1)
    assert settlement.usage.completion_tokens == 2


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Headrace-Cache-Salt", "X-Forwarded-For"])
async def test_no_header_of_the_caller_reaches_the_engine(site: GatewaySite, name: str) -> None:
    status, _ = await post(site, good.encode(), **{name: "caller-canary", "Cookie": "a=b"})
    assert status == 200
    headers = site.engines[0].seen[-1].headers
    assert "caller-canary" not in headers.values()
    assert "cookie" not in headers


hosts = ("x", "x/?", "x/livez", "localhost/livez?", "127.0.0.1:1@x/", "[::1", "livez", "x y", "")
ways = ("{}", "{}?/livez", "{}#/livez", "/livez/..{}", "/livez;{}", "//livez{}", "/livez%2f..{}",
        "http://x/livez/..{}", "{}/", "{}%00", "{};/livez", "/.{}", "{}\t/livez")  # fmt: skip
methods = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "get", "BREW")
forged = "X-Forwarded-Host: localhost\nX-Original-URL: /livez\nX-Rewrite-URL: /livez"


@pytest.mark.parametrize(
    "lines",
    [
        "Authorization: Bearer KEY\nAuthorization: Bearer hr_x",
        "Authorization: Bearer hr_x\nAuthorization: Bearer KEY",
        "X-Api-Key: KEY\nX-Api-Key: KEY",
        "Authorization: Bearer KEY\xa0",
        "Authorization: Bearer \xa0KEY",
        "X-Api-Key: KEY\x85",
        "Authorization: Bearer KEY, Bearer KEY",
        "Authorization: Bearer KEY hr_x",
        "Authorization: Basic eDp5\nX-Api-Key: KEY",
        "Cookie: key=KEY",
        "X-Original-Authorization: Bearer KEY",
    ],
)
async def test_a_key_is_presented_once_and_as_it_is(site: GatewaySite, lines: str) -> None:
    data = request(f"GET /v1/models HTTP/1.1\nHost: x\n{lines}\nConnection: close")
    assert (await raw(site, data))[9:12] == b"401"


async def test_a_key_in_a_trailer_opens_nothing(site: GatewaySite) -> None:
    head = f"POST {chat_path} HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nConnection: close"
    body = f"{len(good):x}\r\n{good}\r\n0\r\nAuthorization: Bearer KEY\r\n\r\n"
    assert (await raw(site, request(head, body)))[9:12] == b"401"
    assert site.engines[0].seen == []


async def test_no_host_path_or_method_opens_a_route_to_who_has_no_key(site: GatewaySite) -> None:
    """Whether somebody is let in is decided by the route that was found, and by nothing else."""
    closed = [
        route for route in site.gateway.app.routes if route.access in (Access.KEY, Access.PLATFORM)
    ]
    assert len(closed) > 30
    refused: Counter[bytes] = Counter()
    for route in closed:
        path = route.name.replace("{", "").replace("}", "")
        asked = [(route.method, path, host) for host in hosts]
        asked += [(method, path, "x") for method in methods]
        asked += [(route.method, way.format(path), "x") for way in ways]
        for method, target, host in asked:
            data = request(f"{method} {target} HTTP/1.1\nHost: {host}\n{forged}\nContent-Length: 0")
            answer = await raw(site, data)
            status = answer[9:12]
            assert status in (b"", b"400", b"401", b"404", b"405"), (method, target, host, answer)
            assert b"Traceback" not in answer
            refused[status] += 1
    assert refused[b"401"] > len(closed) * len(hosts)  # it is not the shape that is refused
    assert site.engines[0].seen == []
