"""`headrace up`: the whole platform on this machine, until Ctrl-C or SIGTERM."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.cli import fleet, tls_options
from headrace.cli.fleet import (
    FreezeShare,
    LostAfter,
    NodeCertificate,
    NodeKey,
    NodeListen,
    NodePlaintext,
    control_arguments,
)
from headrace.cli.model_files import resolve_model
from headrace.cli.platform_files import PlatformFiles, local_launcher
from headrace.cli.settings import CacheDir, DatabaseUrl, DataDir, OtlpEndpoint, Setting
from headrace.cli.settings import otlp_endpoint as otlp_setting
from headrace.cli.supervisor import data_dir as directory
from headrace.cli.supervisor.demo import DemoModel, DemoSeed
from headrace.cli.supervisor.platform import Platform, PlatformSetup, base_url
from headrace.cli.tls_options import TlsCertificate, TlsKey, TlsListen, gateway_arguments
from headrace.control.nodes.standing import default_times
from headrace.http import server
from headrace.launchers import lifeline
from headrace.spec.deployments import Replica
from headrace.spec.nodes import Node
from headrace.storage import Database, open_database
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model

loopback = "127.0.0.1"
demo_model = "smollm2-135m-instruct"
replicas_max = 64  # of a demo, on one machine

demo = Setting("demo", bool, False, "Serve a small model with a tenant, a price and a key.")
replicas = Setting("replicas", int, None, "Replicas of the demo's model; default: 1, or as before.")
model = Setting(
    "model",
    str,
    None,
    f"The demo's model, as for `headrace serve`; default: {demo_model}.",
)
host = Setting("host", str, loopback, "The gateway's address.")
port = Setting("port", int, 8080, "The gateway's port; 0 takes a free one.")
admin_port = Setting(
    "admin-port", int, 8081, "The admin API's and console's port on this machine; 0: a free one."
)
ready_file = Setting(
    "ready-file", Path, None, "Where to write addresses and secrets as JSON, once all is ready."
)
allow_public = Setting(
    "allow-public", bool, False, "Let the gateway listen beyond this machine, without TLS."
)

all_settings = (
    *(demo, replicas, model, host, port, admin_port, ready_file, allow_public),
    *tls_options.all_settings,
    *fleet.all_settings,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", help="Start the platform: gateway, control plane and replicas.")(up)


def up(
    *,
    with_demo: Annotated[bool, demo.option()] = False,
    replica_count: Annotated[int | None, replicas.option()] = None,
    model_reference: Annotated[str | None, model.option()] = None,
    gateway_host: Annotated[str, host.option()] = loopback,
    gateway_port: Annotated[int, port.option()] = 8080,
    control_port: Annotated[int, admin_port.option()] = 8081,
    ready_path: Annotated[Path | None, ready_file.option()] = None,
    public: Annotated[bool, allow_public.option()] = False,
    tls_listen: TlsListen = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    node_listen: NodeListen = None,
    node_tls_certificate: NodeCertificate = None,
    node_tls_key: NodeKey = None,
    node_plaintext: NodePlaintext = False,
    node_freeze_share: FreezeShare = default_times.freeze_share,
    node_lost_after: LostAfter = default_times.lost_after_s,
    database_url: DatabaseUrl = None,
    otlp_endpoint: OtlpEndpoint = None,
    data_dir: DataDir,
    cache_dir: CacheDir,
) -> None:
    """Start the platform: gateway, control plane and replicas."""
    check_demo(with_demo, replica_count, model_reference)
    check_ports(gateway_port, control_port)
    check_exposure(gateway_host, public)
    if otlp_endpoint is not None:
        os.environ[otlp_setting.variable] = otlp_endpoint  # gateways and engines inherit it
    tls_arguments = gateway_arguments(tls_listen, tls_certificate, tls_key)
    node_arguments = control_arguments(
        node_listen,
        (node_tls_certificate, node_tls_key),
        plaintext=node_plaintext,
        share=node_freeze_share,
        lost_after_s=node_lost_after,
    )
    clock = SystemClock()
    files = PlatformFiles(data_dir.expanduser().absolute())
    with ExitStack() as stack:
        lock = stack.enter_context(directory.locked(files))
        gateway_socket = stack.enter_context(server.bind(gateway_host, gateway_port))
        admin_socket = stack.enter_context(server.bind(loopback, control_port))
        if ready_path is not None:
            remove_ready_file(ready_path)
        found = (
            find_demo_model(model_reference or demo_model, cache_dir, replica_count)
            if with_demo
            else None
        )
        pepper = directory.ensure_pepper(files)
        database = open_database(files.database, database_url)
        stack.callback(database.close)
        forget_replicas(database, files, clock)
        api_key: str | None = None
        if found is not None:
            seed = DemoSeed(database.store, pepper, clock)
            seed.serve(found)
            api_key = seed.issue_key()
        line = lifeline.create()
        stack.callback(line.close)
        setup = PlatformSetup(
            files=files,
            store=database.store,
            gateway_socket=gateway_socket,
            admin_socket=admin_socket,
            inherited=(lock,),
            lifeline=line,
            admin=directory.write_admin_address(files, base_url(admin_socket)),
            cache_dir=cache_dir,
            allow_public=public,
            api_key=api_key,
            model_name=None if found is None else found.name,
            ready_file=ready_path,
            gateway_arguments=tls_arguments,
            control_arguments=node_arguments,
            database_url=database_url,
        )
        server.run(run_platform(setup, clock))


def check_demo(with_demo: bool, count: int | None, model_reference: str | None) -> None:
    """ConfigurationError for what only `--demo` has, and for too many or too few replicas."""
    if not with_demo and (count, model_reference) != (None, None):
        raise ConfigurationError(
            "--replicas and --model are for --demo; `headrace deployments` is for what the store "
            "has."
        )
    if count is not None and not 0 < count <= replicas_max:
        raise ConfigurationError(f"--replicas is {count}; it must be 1 to {replicas_max}.")


def check_ports(gateway_port: int, control_port: int) -> None:
    """ConfigurationError if both are to have the same port; the system would name a stranger."""
    if gateway_port == control_port != 0:
        raise ConfigurationError(
            f"--port and --admin-port are both {gateway_port}; give each a port of its own."
        )


def check_exposure(gateway_host: str, public: bool) -> None:
    """ConfigurationError for an address beyond this machine, unless that was asked for."""
    if not (public or server.is_loopback(gateway_host)):
        raise ConfigurationError(
            f"Refusing to listen on {gateway_host}: API keys would cross the network unencrypted. "
            "Use --tls-listen with a certificate, a TLS proxy in front of a loopback address, or "
            "--allow-public if that is wanted."
        )


async def run_platform(setup: PlatformSetup, clock: SystemClock) -> None:
    """Run one platform to its end."""
    await Platform(setup, clock).run()


def find_demo_model(reference: str, cache_dir: Path, replica_count: int | None) -> DemoModel:
    """The demo's model file, fetched if need be, and looked at, so that a bad one is known now."""
    resolved = resolve_model(reference, cache_dir)
    with open_model(resolved.path) as file:
        read_architecture(file)
    path = Path(reference).expanduser()
    source = str(path.absolute()) if path.exists() else reference
    return DemoModel(source, resolved, replica_count)


def remove_ready_file(path: Path) -> None:
    """Remove what an earlier start left, so that no script takes it for this one's."""
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"--ready-file: there is no directory {path.absolute().parent}.")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--ready-file {path}: {error.strerror}.") from None


def forget_replicas(database: Database, files: PlatformFiles, clock: SystemClock) -> None:
    """Clear what an earlier platform that was killed left: no replica here outlives it."""
    launcher = local_launcher(files, clock)
    for launch in launcher.list():
        launcher.stop(launch.launch_id, 0.0)
    remote = {node.id for node in database.store.list(Node) if not node.is_local}
    for replica in database.store.list(Replica):
        if replica.node_id not in remote:  # agents keep theirs
            database.store.delete(replica)
