"""TLS: served, renewed while it runs, refused where files do not fit."""

import asyncio
import datetime
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from headrace.base.errors import ConfigurationError
from headrace.http.asgi import Receive, Scope, Send, send_bytes
from headrace.http.server import address_of, bind, serve
from headrace.http.tls import Certificate


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send_bytes(send, 200, b"hello", [])


def write(authority: trustme.CA, directory: Path) -> tuple[Path, Path]:
    """A new certificate of localhost in the same files."""
    issued = authority.issue_cert("localhost")
    chain, key = directory / "chain.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(chain)
    return chain, key


async def serial_at(port: int, trust: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("localhost", port, ssl=trust)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    return str(certificate["serialNumber"])


async def test_tls_is_served_and_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    certificate = Certificate(*write(authority, tmp_path))
    sock, stop = bind("127.0.0.1", 0), asyncio.Event()
    port = address_of(sock)[1]
    task = asyncio.create_task(
        serve(answer, sock, drain_timeout_s=5, stop=stop, certificate=certificate)
    )
    try:
        async with aiohttp.ClientSession() as client:
            async with client.get(f"https://localhost:{port}/", ssl=trust) as response:
                assert await response.text() == "hello"
            first = await serial_at(port, trust)
            assert not certificate.renew()
            write(authority, tmp_path)
            assert certificate.renew()
            assert await serial_at(port, trust) != first
            with pytest.raises(aiohttp.ClientError):
                await client.get(f"http://localhost:{port}/")
    finally:
        stop.set()
        await task


def test_a_half_renewed_pair_is_not_taken(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = Certificate(*write(authority, tmp_path))
    authority.issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "key.pem")
    assert not certificate.renew()
    write(authority, tmp_path)
    assert certificate.renew()


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").write_text("nothing")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Certificate(tmp_path / "chain.pem", tmp_path / "key.pem")


def test_the_expiry_is_that_of_the_certificate_in_use(tmp_path: Path) -> None:
    authority = trustme.CA()
    soon = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    issued = authority.issue_cert("localhost", not_after=soon)
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(chain)
    certificate = Certificate(chain, key)
    assert certificate.expire_time() == soon.timestamp()
    write(authority, tmp_path)
    assert certificate.renew()
    assert certificate.expire_time() != soon.timestamp()
