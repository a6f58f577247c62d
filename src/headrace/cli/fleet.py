"""The part of a control plane that has nodes: their book, their loop, and the agents' door."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.cli.settings import Setting
from headrace.control.nodes.book import NodeBook
from headrace.control.nodes.fleet_launcher import FleetLauncher
from headrace.control.nodes.machine import find_nvml, read_inventory
from headrace.control.nodes.node_loop import NodeLoop
from headrace.control.nodes.orders import OrderBook
from headrace.control.nodes.report_api import NodeReportApi
from headrace.control.nodes.standing import NodeTimes, default_times
from headrace.http import server
from headrace.http.asgi import App
from headrace.http.tls import Certificate
from headrace.launchers.protocol import Launcher
from headrace.storage.store import Store

loopback = "127.0.0.1"
drain_timeout_s = 5.0

node_listen = Setting(
    "node-listen", str, None, "Where agents of nodes report, as HOST:PORT; default: the admin port."
)
node_certificate = Setting(
    "node-tls-certificate", Path, None, "The certificate chain (PEM) of that address."
)
node_key = Setting("node-tls-key", Path, None, "The certificate's key (PEM).")
node_plaintext = Setting(
    "node-plaintext", bool, False, "Let it be beyond this machine without TLS: a private network."
)
freeze_share = Setting(
    "node-freeze-share",
    float,
    default_times.freeze_share,
    "Nothing is moved while more than this share of the nodes fell silent together.",
    unit="0 to 1",
)
lost_after = Setting(
    "node-lost-after",
    float,
    default_times.lost_after_s,
    "After so long without a report what ran on a node starts elsewhere.",
    unit="seconds",
)
all_settings = (
    *(node_listen, node_certificate, node_key, node_plaintext),
    *(freeze_share, lost_after),
)
NodeListen = Annotated[str | None, node_listen.option()]
NodeCertificate = Annotated[Path | None, node_certificate.option()]
NodeKey = Annotated[Path | None, node_key.option()]
NodePlaintext = Annotated[bool, node_plaintext.option()]
FreezeShare = Annotated[float, freeze_share.option()]
LostAfter = Annotated[float, lost_after.option()]
LocalNode = Annotated[
    bool, typer.Option("--local-node/--no-local-node", help="Run replicas here as well.")
]


@dataclass(frozen=True, slots=True)
class NodeListener:
    """Where agents report beside the admin port."""

    host: str
    port: int
    certificate: Certificate | None

    def check(self) -> None:
        """ConfigurationError if its address cannot be listened on, so that a start says so."""
        server.bind(self.host, self.port).close()

    async def serve(self, app: App, stop: asyncio.Event) -> None:
        """Serve until told to stop."""
        with server.bind(self.host, self.port) as sock:
            await server.serve(
                app,
                sock,
                drain_timeout_s=drain_timeout_s,
                stop=stop,
                certificate=self.certificate,
                handles_signals=False,
            )


def node_listener(
    address: str | None, chain: Path | None, key: Path | None, *, plaintext: bool
) -> NodeListener | None:
    """What the options ask for; ConfigurationError if tokens would cross a network in clear."""
    if address is None:
        if chain is not None or key is not None:
            raise ConfigurationError("--node-tls-certificate and --node-tls-key need --node-listen")
        return None
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        raise ConfigurationError(f"--node-listen is HOST:PORT, not {address!r}")
    if (chain is None) != (key is None):
        raise ConfigurationError("--node-tls-certificate and --node-tls-key go together")
    certificate = None if chain is None or key is None else Certificate(chain, key)
    if certificate is None and not plaintext and not server.is_loopback(host):
        raise ConfigurationError(
            f"Refusing to listen on {host} for nodes: their tokens and their replicas' keys would "
            "cross the network unencrypted. Give --node-tls-certificate and --node-tls-key, or "
            "--node-plaintext in a network of your own."
        )
    return NodeListener(host, int(port), certificate)


def node_times(share: float, lost_after_s: float) -> NodeTimes:
    """The times by these settings; ConfigurationError for ones that make no sense."""
    if not 0.0 < share <= 1.0:
        raise ConfigurationError(f"--node-freeze-share is over 0 and up to 1, not {share:g}")
    if lost_after_s < 3 * default_times.report_interval_s:
        least_s = 3 * default_times.report_interval_s
        raise ConfigurationError(f"--node-lost-after is at least {least_s:g} s, three reports")
    silent_after_s = min(default_times.silent_after_s, lost_after_s / 3)
    return NodeTimes(freeze_share=share, lost_after_s=lost_after_s, silent_after_s=silent_after_s)


def control_arguments(
    address: str | None,
    files: tuple[Path | None, Path | None],
    *,
    plaintext: bool,
    share: float,
    lost_after_s: float,
) -> tuple[str, ...]:
    """The same options for the control plane's process; ConfigurationError as above."""
    chain, key = files
    node_listener(address, chain, key, plaintext=plaintext)
    node_times(share, lost_after_s)
    values = (
        (node_listen, address),
        (node_certificate, chain),
        (node_key, key),
        (freeze_share, share),
        (lost_after, lost_after_s),
    )
    given = (text for name, value in values if value for text in (name.flag, str(value)))
    return (*given, *((node_plaintext.flag,) if plaintext else ()))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a control plane with nodes is made of, beside the rest."""

    launcher: Launcher
    loop: NodeLoop
    reports: App


def open_fleet(
    store: Store,
    *,
    local: Launcher,
    pepper: bytes,
    clock: Clock,
    leads: Callable[[], bool],
    times: NodeTimes,
    runs_here: bool = True,
    place: tuple[str, str] = ("", ""),
) -> Fleet:
    """Nodes over this machine's launcher; `place` is this machine's region and zone."""
    book = NodeBook(clock.monotonic_s())
    loop = NodeLoop(
        store=store,
        book=book,
        clock=clock,
        leads=leads,
        local=read_inventory(loopback, find_nvml()) if runs_here else None,
        times=times,
        region=place[0],
        zone=place[1],
    )
    reports = NodeReportApi(
        store=store,
        pepper=pepper,
        book=book,
        orders=OrderBook(store, times.report_interval_s, pepper),
        clock=clock,
        leads=leads,
    )
    return Fleet(FleetLauncher(store, book, local, clock, pepper), loop, reports)
