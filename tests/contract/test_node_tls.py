"""An agent reports over TLS to a listener of its own, and only to one that it trusts."""

import asyncio
from pathlib import Path

import pytest

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.cli.fleet import NodeListener, open_fleet
from headrace.control.model_files import ModelFiles
from headrace.control.nodes.agent import NodeAgent, Worker
from headrace.control.nodes.standing import NodeTimes
from headrace.http import server
from headrace.http.client import HttpClient
from headrace.http.tls import Certificate
from headrace.sim.launcher import FakeLauncher
from headrace.spec.nodes import Inventory, Node
from headrace.spec.token_format import node_tokens
from headrace.storage import open_sqlite

trustme = pytest.importorskip("trustme", reason="trustme is missing")

pepper = b"p" * 32
secret = b"s" * 32


async def test_an_agent_reports_over_tls_to_whom_it_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain, key, trusted = (tmp_path / name for name in ("chain.pem", "key.pem", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(chain)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    clock = SystemClock()
    database = open_sqlite(tmp_path / "store.db", clock)
    node_id = new_id(Node.id_prefix, clock)
    digest = node_tokens.digest(pepper, secret.hex())
    database.store.create(Node(id=node_id, name="a", create_time=0, secret_hmac=digest))
    fleet = open_fleet(
        database.store,
        local=FakeLauncher(),
        pepper=pepper,
        clock=clock,
        leads=lambda: True,
        times=NodeTimes(),
    )
    with server.bind("127.0.0.1", 0) as sock:
        port = server.address_of(sock)[1]
    stop = asyncio.Event()
    listener = NodeListener("127.0.0.1", port, Certificate(chain, key))
    serving = asyncio.create_task(listener.serve(fleet.reports, stop))

    async def reports(scheme: str = "https") -> bool:
        caplog.clear()
        client = HttpClient()
        agent = NodeAgent(
            urls=[f"{scheme}://localhost:{port}"],
            token=node_tokens.format(node_id, secret),
            worker=Worker(FakeLauncher(), ModelFiles(tmp_path, clock), lambda: (4001,)),
            client=client,
            clock=clock,
            inventory=lambda: Inventory(address="127.0.0.1"),
            labels={},
        )
        try:
            return await agent.report()
        finally:
            await client.close()

    try:
        assert not await reports()
        assert "its certificate is not trusted here" in caplog.text
        assert "SSL_CERT_FILE" in caplog.text
        assert not await reports("http")
        assert "name it as https://" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert await reports()
        stop.set()
        await serving
        assert not await reports()
        assert "no connection: " in caplog.text
    finally:
        stop.set()
        await serving
        database.close()
