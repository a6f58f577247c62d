"""`headrace node join`: this machine runs replicas of a platform elsewhere.

The agent only speaks outward, to the control plane; its replicas listen on `--address`, each with a
key of its own. Ctrl-C ends the replicas as well; SIGTERM leaves them to the next start, which is
what a service manager's restart is.
"""

import asyncio
import fcntl
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli.cache import parse_size_bytes
from headrace.cli.nodes import labels_of
from headrace.cli.platform import platform_group
from headrace.cli.settings import CacheDir, Setting, default_data_dir
from headrace.control.model_files import ModelFiles
from headrace.control.nodes.agent import NodeAgent, Worker, tidy_logs
from headrace.control.nodes.cache_keeper import CacheKeeper
from headrace.control.nodes.machine import find_nvml, read_inventory
from headrace.control.nodes.ports import PortFinder, address_towards
from headrace.http import server
from headrace.http.client import HttpClient
from headrace.launchers.process import ProcessLauncher
from headrace.spec.token_format import node_tokens

logs_kept = 64
private_mode = 0o600

node_token = Setting("node-token", str, None, "The node's token, for the first join.", secret=True)
node_dir = Setting(
    "node-dir",
    Path,
    lambda: default_data_dir() / "node",
    "Where the agent keeps its token, records and logs.",
)
node_address = Setting(
    "node-address",
    str,
    None,
    "Where its replicas listen; default: this machine's address towards the control plane.",
)
all_settings = (node_token, node_dir, node_address)


class Membership(msgspec.Struct, frozen=True):
    """What the agent remembers between starts."""

    urls: list[str]
    token: str


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("node", "This machine as a node: join.", app)
    group.callback()(lambda: None)
    group.command("join")(join)


def join(
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL...]", help="The control planes; default: as before."),
    ] = None,
    *,
    token: Annotated[str | None, node_token.option()] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token, instead of --node-token.")
    ] = None,
    directory: Annotated[Path, node_dir.option()],
    cache_dir: CacheDir,
    address: Annotated[str | None, node_address.option()] = None,
    ports: Annotated[
        str | None, typer.Option(help="FIRST-LAST for replicas; default: any free ones.")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="NAME=VALUE; repeatable.")
    ] = None,
    cache_limit: Annotated[
        str | None, typer.Option(help="Budget of the weight cache, as 200GiB; default: none.")
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Report beyond this machine without TLS.")
    ] = False,
) -> None:
    """Report this machine to a control plane, and run what it orders, until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    directory = directory.expanduser().absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.pop(node_token.variable, None)
    with locked(directory / "lock"):
        member = membership(directory / "node.json", urls, read_token(token, token_file))
        for url in member.urls:
            check_url(url, plaintext=plaintext)
        host = address or address_of(member.urls[0])
        clock = SystemClock()
        launcher = ProcessLauncher(
            directory / "replicas", directory / "logs", None, clock, host=host
        )
        tidy_logs(directory / "logs", logs_kept)
        budget = None if cache_limit is None else parse_size_bytes(cache_limit, "--cache-limit")
        keeper = CacheKeeper(cache_dir, budget, clock)
        files = ModelFiles(cache_dir, clock)
        worker = Worker(launcher, files, port_finder(host, ports), keeper)
        server.run(run(member, worker, clock, host, labels_of(labels)))


async def run(
    member: Membership, worker: Worker, clock: SystemClock, host: str, labels: dict[str, str]
) -> None:
    """Report until a signal comes."""
    stop, ends_replicas = asyncio.Event(), False

    def interrupted() -> None:
        nonlocal ends_replicas
        ends_replicas = True
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)
    client, nvml = HttpClient(), find_nvml()
    agent = NodeAgent(
        urls=member.urls,
        token=member.token,
        worker=worker,
        client=client,
        clock=clock,
        inventory=lambda: read_inventory(host, nvml),
        labels=labels,
    )
    try:
        await agent.run(stop)
        if ends_replicas:
            await worker.end_all()
    finally:
        await client.close()


def membership(path: Path, urls: list[str] | None, token: str | None) -> Membership:
    """Where to report and as whom: as given, else as kept; what is new is kept."""
    kept: Membership | None = None
    if path.exists():
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=Membership)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"{path} is damaged ({error}); remove it, and join anew"
            ) from None
    found = Membership(urls or (kept.urls if kept else []), token or (kept.token if kept else ""))
    if not found.urls:
        raise ConfigurationError("name the control plane: `headrace node join URL`")
    if node_tokens.parse(found.token) is None:
        raise ConfigurationError(
            "this is no node's token; `headrace nodes add NAME`, where the platform runs, prints "
            "one for HEADRACE_NODE_TOKEN"
        )
    if found != kept:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, private_mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(found))
    return found


def read_token(token: str | None, path: Path | None) -> str | None:
    """The token as given; ConfigurationError if its file can't be read."""
    if path is None:
        return token
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"--token-file {path}: {error.strerror}") from None


def check_url(url: str, *, plaintext: bool) -> None:
    """ConfigurationError for what is no address, or would send the token in clear."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{url!r} is not an http:// or https:// address")
    if parts.scheme == "http" and not plaintext and not server.is_loopback(parts.hostname):
        raise ConfigurationError(
            f"Refusing to report to {url}: the token and the replicas' keys would cross the "
            "network unencrypted. Use https://, or --plaintext in a network of your own."
        )


def address_of(url: str) -> str:
    """This machine's address towards a control plane."""
    parts = urlsplit(url)
    try:
        return address_towards(parts.hostname or "", parts.port or 443)
    except OSError as error:
        raise ConfigurationError(
            f"{url} cannot be reached ({error}); name --node-address"
        ) from None


def port_finder(host: str, ports: str | None) -> PortFinder:
    """The ports for replicas; ConfigurationError for a range that is none."""
    if ports is None:
        return PortFinder(host)
    first, dash, last = ports.partition("-")
    if not (
        dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536
    ):
        raise ConfigurationError(f"--ports is FIRST-LAST, such as 20000-20100; not {ports!r}")
    return PortFinder(host, int(first), int(last))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a directory; ConfigurationError if another agent has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, private_mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigurationError(
            f"another agent runs in {path.parent}; give this one a --node-dir of its own"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
