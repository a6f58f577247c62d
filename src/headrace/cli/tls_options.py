"""The customers' port under TLS: its options, and serving it beside the local one.

    headrace up --tls-listen 0.0.0.0:8443 --tls-certificate chain.pem --tls-key key.pem

The local port stays as it is: what runs on this machine needs no certificate.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headrace.base.errors import ConfigurationError
from headrace.cli.settings import Setting
from headrace.http import server
from headrace.http.asgi import App
from headrace.http.tls import Certificate

listen = Setting("tls-listen", str, None, "Serve TLS here too, as HOST:PORT; it may be public.")
chain = Setting("tls-certificate", Path, None, "The certificate chain (PEM); renewals are noticed.")
key = Setting("tls-key", Path, None, "The certificate's key (PEM).")
all_settings = (listen, chain, key)
TlsListen = Annotated[str | None, listen.option()]
TlsCertificate = Annotated[Path | None, chain.option()]
TlsKey = Annotated[Path | None, key.option()]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsListener:
    """Where TLS is served, and with what."""

    address: tuple[str, int]
    certificate: Certificate


def tls_listener(
    address: str | None, chain_path: Path | None, key_path: Path | None
) -> TlsListener | None:
    """What the options ask for; ConfigurationError if they do not go together."""
    if address is None and chain_path is None and key_path is None:
        return None
    if address is None or chain_path is None or key_path is None:
        raise ConfigurationError(
            "--tls-listen, --tls-certificate and --tls-key go together; give all three."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f"--tls-listen is HOST:PORT, such as 0.0.0.0:8443; not {address!r}."
        )
    return TlsListener((host.strip("[]"), int(port)), Certificate(chain_path, key_path))


def gateway_arguments(
    address: str | None, chain_path: Path | None, key_path: Path | None
) -> tuple[str, ...]:
    """The same options for the gateway's process; ConfigurationError as above."""
    if tls_listener(address, chain_path, key_path) is None:
        return ()
    values = ((listen, address), (chain, chain_path), (key, key_path))
    return tuple(text for setting, value in values for text in (setting.flag, str(value)))


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets of one gateway."""

    local: socket.socket
    tls: socket.socket | None = None
    certificate: Certificate | None = None

    async def serve(
        self,
        app: App,
        drain_timeout_s: float,
        *,
        on_drain: Callable[[], None],
        on_cut: Callable[[], None],
    ) -> None:
        """Serve on all of them until SIGTERM has drained them; see `server.serve`."""
        stop = asyncio.Event()

        def drain() -> None:
            on_drain()
            stop.set()

        log.info("gateway on http://%s:%d", *server.address_of(self.local))
        async with asyncio.TaskGroup() as servers:
            if self.tls is not None:
                log.info("gateway on https://%s:%d", *server.address_of(self.tls))
                servers.create_task(
                    server.serve(
                        app,
                        self.tls,
                        drain_timeout_s=drain_timeout_s,
                        stop=stop,
                        on_cut=on_cut,
                        certificate=self.certificate,
                        handles_signals=False,
                    )
                )
            servers.create_task(
                server.serve(
                    app,
                    self.local,
                    drain_timeout_s=drain_timeout_s,
                    on_drain=drain,
                    on_cut=on_cut,
                )
            )
