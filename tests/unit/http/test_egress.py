"""The egress guard lets requests out to public addresses and named hosts, and nowhere else."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator

import pytest

from headrace.base.errors import (
    DeadlineExceeded,
    HeadraceError,
    InvalidRequest,
    PermissionDenied,
    UpstreamFailed,
)
from headrace.http.egress import EgressPolicy, is_public, no_hosts_allowed
from headrace.http.egress_client import EgressClient

inward = (
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.9",
    "169.254.169.254", "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.192",
    "192.168.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::1", "fc00::1", "fd00:ec2::254",
    "fe80::1", "ff02::1", "2001:db8::1",
)  # fmt: skip


@pytest.mark.parametrize("text", inward)
def test_addresses_of_our_own_side_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://127.1/", "https://0x7f.1/", "https://2130706433/",
        "https://0177.0.0.1/", "https://[::1]/", "https://[::ffff:7f00:1]/",
        "https://169.254.169.254/latest/meta-data", "https://[fe80::1%25eth0]/",
        "https://localhost/", "https://LOCALHOST:8443/x", "https://a.localhost./", "https://intranet/",
        "https://printer.local/", "https://metadata.google.internal/", "https://box.home.arpa/",
    ],
)  # fmt: skip
def test_inward_addresses_are_refused_however_they_are_written(url: str) -> None:
    with pytest.raises((PermissionDenied, InvalidRequest)):
        no_hosts_allowed.check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "", "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://x/",
        "https://user@example.com/", "https://user:pw@example.com/", "https:///path", "//x/",
        "https://exam\nple.com/", "https://example.com:99999/", "https://ex\u00e4mple.com/",
        "https://" + "a" * 3000, "https://[::1/",
    ],
)  # fmt: skip
def test_what_is_no_plain_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        no_hosts_allowed.check_url(url)


class Server:
    """A server on loopback that answers with fixed bytes and counts who came."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.connections = 0
        self.received = b""
        self.port = 0
        self.silent: list[asyncio.StreamWriter] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.received = await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await writer.drain()
        if self.answer:
            writer.close()
        else:
            self.silent.append(writer)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    running = await asyncio.start_server(served.handle, "127.0.0.1", 0)
    served.port = running.sockets[0].getsockname()[1]
    yield served
    running.close()
    for writer in served.silent:
        writer.close()
        await writer.wait_closed()


async def fetch(url: str, *allowed: str, timeout_s: float = 5.0, limit_bytes: int = 100) -> bytes:
    client = EgressClient(EgressPolicy.allowing(allowed))
    try:
        answer = await client.fetch(
            "GET", url, headers={}, timeout_s=timeout_s, limit_bytes=limit_bytes
        )
    finally:
        await client.close()
    return answer.body


async def test_an_allowed_host_is_asked(server: Server) -> None:
    assert await fetch(f"http://127.0.0.1:{server.port}/x", "127.0.0.1") == b"ok"
    assert await fetch(f"http://LOCALHOST:{server.port}/x", "localhost") == b"ok"
    assert b"authorization" not in server.received.lower()


@pytest.mark.parametrize(
    "host",
    [
        "%31%32%37.0.0.1", "127.0.0.1%00.example.com", "127.0.0.1%2eexample", "127.0.0.1.",
        "127.0.0.1..", "0", "017700000001", "0x7f000001", "127.0.1", "[0:0:0:0:0:ffff:127.0.0.1]",
        "[::1%25lo]", "[::127.0.0.1]", "[v1.127.0.0.1]", "foo.example\\.127.0.0.1",
        "foo.example\\@127.0.0.1", "foo.example#@127.0.0.1", "foo.example;@127.0.0.1",
        "127%E3%80%820.0.1", "127.0.0.1%EF%BC%8E", "%6c%6f%63alhost", "a.%6c%6f%63alhost",
        "ip6-localhost.", "localhost.localdomain",
    ],
)  # fmt: skip
async def test_no_spelling_makes_two_parsers_disagree_about_where_to_go(
    server: Server, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Who checks an address and who connects to it read it on their own."""

    async def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(HeadraceError):
        await fetch(f"https://{host}:{server.port}/")
    assert server.connections == 0


async def test_a_name_that_leads_inward_is_refused_before_anything_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    answers = [("93.184.216.34", 0), ("127.0.0.1", 0)]

    async def resolve(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in answers]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    with pytest.raises(PermissionDenied):
        await fetch(f"https://rebinding.example:{server.port}/")
    assert server.connections == 0


async def test_the_address_that_was_checked_is_the_one_that_is_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    asked = 0

    async def resolve(*_: object, **__: object) -> list[object]:
        nonlocal asked
        asked += 1
        address = ("127.0.0.1", 0) if asked == 1 else ("10.0.0.1", 0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    url = f"http://named.example:{server.port}/"
    assert await fetch(url, "named.example") == b"ok"
    assert asked == 1


async def test_a_redirect_is_an_answer_and_is_not_followed(server: Server) -> None:
    server.answer = (
        b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
    )
    client = EgressClient(EgressPolicy.allowing(["127.0.0.1"]))
    answer = await client.fetch(
        "POST",
        f"http://127.0.0.1:{server.port}/",
        headers={},
        timeout_s=5,
        limit_bytes=10,
        body=b"x",
    )
    await client.close()
    assert (answer.status, server.connections) == (302, 1)


async def test_a_long_answer_and_a_silent_server_are_given_up(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    with pytest.raises(UpstreamFailed, match="over 1 bytes"):
        await fetch(url, "127.0.0.1", limit_bytes=1)
    server.answer = b""
    with pytest.raises(DeadlineExceeded):
        await fetch(url, "127.0.0.1", timeout_s=0.05)


async def test_nobody_there_is_an_operating_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(HeadraceError, match="no connection"):
        await fetch(f"http://127.0.0.1:{port}/", "127.0.0.1")
