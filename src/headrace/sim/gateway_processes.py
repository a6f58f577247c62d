"""Several real gateway processes over one PostgreSQL and one engine, which the caller has."""

import asyncio
import signal
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from headrace.sim.booked import Booked, read_settlements
from headrace.sim.gateway_site import fill_store, pepper
from headrace.sim.listening_process import Process
from headrace.storage import open_postgres

ready_timeout_s = 120.0  # of a machine that does much else


class GatewayProcesses:
    """`async with GatewayProcesses(...)`; they are ready then."""

    def __init__(
        self, directory: Path, database_url: str, engine_url: str, *, engine: str = "headrace"
    ) -> None:
        """Two, over one replica at `engine_url` of the kind `engine`."""
        self._database_url = database_url
        self._stack = ExitStack()
        self.gateways = [Process(name, directory / name) for name in ("first", "second")]
        with closing(open_postgres(database_url)) as database:
            self.api_key = fill_store(database, [(engine_url, "")], None, engine)

    async def __aenter__(self) -> Self:
        """Start them."""
        for gateway in self.gateways:
            self._stack.callback(gateway.sock.close)
            self._stack.callback(gateway.end, signal.SIGKILL)
            (gateway.directory / "pepper").write_bytes(pepper)
        try:
            await asyncio.gather(*map(self.start, self.gateways))
        except BaseException:
            self._stack.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End what still runs."""
        self._stack.close()

    async def start(self, gateway: Process) -> None:
        """Start one and wait until it serves."""
        gateway.start(
            "headrace.cli.main", "gateway", "--data-dir", str(gateway.directory),
            "--listen-fd", "{fd}", HEADRACE_DATABASE_URL=self._database_url,
        )  # fmt: skip
        async with asyncio.timeout(ready_timeout_s), aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"{gateway.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.1)

    async def booked(self) -> dict[str, Booked]:
        """End all in good order; what the ledger has then, by request id."""
        for gateway in self.gateways:
            await asyncio.to_thread(gateway.end, signal.SIGTERM)
        with closing(open_postgres(self._database_url)) as database:
            problems = database.ledger.check()
            if problems:
                raise RuntimeError(f"the ledger is wrong: {problems}")
            return read_settlements(database)
