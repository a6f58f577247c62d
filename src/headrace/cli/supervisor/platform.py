"""The running platform: gateway, control plane and replicas, from the first start to the drain.

    starting ──a real answer came──> ready ──signal──> draining the gateway ──> control ──> replicas

The control plane's end leaves replicas running, so that it can be started again; the end of the
platform does not: what it leaves is stopped here by the launcher's records, and what even then
remains ends by the lifeline.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError, SetupError
from headrace.cli.admin_client import AdminAddress
from headrace.cli.output import note
from headrace.cli.platform_files import PlatformFiles, local_launcher
from headrace.cli.settings import database_url
from headrace.cli.supervisor import first_answer
from headrace.cli.supervisor.child import Child, ChildSpec
from headrace.cli.supervisor.data_dir import write_private
from headrace.cli.supervisor.screen import Access, Part, StartScreen, show_access
from headrace.http import server
from headrace.http.client import HttpClient
from headrace.launchers.lifeline import Lifeline
from headrace.spec.deployments import Replica, ReplicaState
from headrace.storage.store import Store

drain_timeout_s = 30.0  # for requests that run when the platform is stopped
drain_margin_s = 8.0  # for the gateway to cut what still runs, settle it and write it down
control_grace_s = 5.0
replica_grace_s = 10.0
hurried_grace_s = 1.0
look_interval_s = 0.2  # between looks at what starts
log_look_interval_s = 30.0
replica_attempts_max = 3  # launches that came to nothing before a demo gives up

moods = {ReplicaState.ACTIVE: "ready", ReplicaState.FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class PlatformSetup:
    """All that was prepared before the first process is started."""

    files: PlatformFiles
    store: Store
    gateway_socket: socket.socket
    admin_socket: socket.socket
    inherited: tuple[int, ...]  # descriptors that every child gets beside its own
    lifeline: Lifeline
    admin: AdminAddress
    cache_dir: Path
    allow_public: bool
    api_key: str | None  # with `model_name`: whom to ask as for the first answer
    model_name: str | None
    ready_file: Path | None
    database_url: str | None = None
    gateway_arguments: tuple[str, ...] = ()  # further ones
    control_arguments: tuple[str, ...] = ()


class Platform:
    """One platform; `run` returns when it was told to stop and everything has ended."""

    def __init__(self, setup: PlatformSetup, clock: Clock) -> None:
        self._setup = setup
        self._clock = clock
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self.gateway_url = base_url(setup.gateway_socket)
        self.gateway = Child(self._gateway_spec(), clock, tell)
        self.control = Child(self._control_spec(), clock, tell)

    async def run(self) -> None:
        """Start everything, tell how to use it, and keep it running until a signal.

        SetupError if it cannot start; everything is stopped in any case."""
        loop = asyncio.get_running_loop()
        with signals_to(loop, self._on_signal):
            tasks = [
                asyncio.create_task(self.gateway.keep_running()),
                asyncio.create_task(self.control.keep_running()),
                asyncio.create_task(self._stop.wait()),
                asyncio.create_task(self._serve()),
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._shut_down()

    async def _serve(self) -> None:
        """Wait until the platform is ready, say so, and look after the logs from then on."""
        client = HttpClient()
        try:
            with StartScreen() as screen:
                await self._wait_ready(client, screen)
        finally:
            await client.close()
        self.gateway.was_ready = self.control.was_ready = True
        self._tell()
        while True:
            await asyncio.sleep(log_look_interval_s)
            self.gateway.tend_log()
            self.control.tend_log()

    async def _wait_ready(self, client: HttpClient, screen: StartScreen) -> None:
        """Look at everything from outside until a customer would get an answer."""
        while True:
            if await self._is_ready(client, screen):
                return
            await asyncio.sleep(look_interval_s)

    async def _is_ready(self, client: HttpClient, screen: StartScreen) -> bool:
        setup = self._setup
        replicas = await asyncio.to_thread(setup.store.list, Replica)
        gateway_up = await first_answer.gateway_answers(client, self.gateway_url)
        control_up = await first_answer.control_answers(
            client, setup.admin.admin_url, setup.admin.token
        )
        parts = [
            self._part(self.gateway, gateway_up),
            self._part(self.control, control_up),
            *(replica_part(replica) for replica in replicas),
        ]
        screen.show(parts)
        if not (gateway_up and control_up):
            return False
        if setup.api_key is None or setup.model_name is None:
            return True
        own = [replica for replica in replicas if replica.model_name == setup.model_name]
        if own and all(is_hopeless(replica) for replica in own):
            raise SetupError(f"{setup.model_name} cannot be served: {own[0].detail}")
        if not any(replica.state is ReplicaState.ACTIVE for replica in own):
            return False
        missing = await first_answer.what_is_missing(
            client, self.gateway_url, setup.api_key, setup.model_name
        )
        if missing is not None:
            screen.show([*parts, Part("first answer", "busy", "waiting", missing)])
        return missing is None

    @staticmethod
    def _part(child: Child, is_up: bool) -> Part:
        if is_up:
            return Part(child.spec.name, "ready", "ready")
        again = f"restarts: {child.restart_count}" if child.restart_count else ""
        return Part(child.spec.name, "busy", "starting", again)

    def _tell(self) -> None:
        """Write the ready file, then show the same to a person."""
        setup = self._setup
        access = Access(
            gateway_url=self.gateway_url,
            admin_url=setup.admin.admin_url,
            admin_token=setup.admin.token,
            api_key=setup.api_key,
            model_name=setup.model_name,
        )
        if setup.ready_file is not None:
            try:
                write_private(setup.ready_file, ready_json(access))
            except OSError as error:
                raise ConfigurationError(
                    f"--ready-file {setup.ready_file}: {error.strerror}."
                ) from None
        with contextlib.suppress(OSError):  # nobody reads it any more, and the platform goes on
            show_access(access)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _shut_down(self) -> None:
        """Drain, then stop in order; a second signal shortens every wait."""
        setup = self._setup
        tell("Stopping; Ctrl-C again to hurry.")
        # From here the gateway alone holds its port, so that its drain closes it.
        setup.gateway_socket.close()
        setup.admin_socket.close()
        await self._stop_child(self.gateway, drain_timeout_s + drain_margin_s)
        await self._stop_child(self.control, control_grace_s)
        await self._stop_replicas()
        if setup.ready_file is not None:
            setup.ready_file.unlink(missing_ok=True)
        tell("Stopped.")

    async def _stop_child(self, child: Child, grace_s: float) -> None:
        stopping = asyncio.create_task(child.stop(grace_s))
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([stopping, hurried], return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            child.signal(signal.SIGTERM)  # the second one cuts what still runs
            await asyncio.wait([stopping], timeout=hurried_grace_s)
            child.signal(signal.SIGKILL)
        await stopping

    async def _stop_replicas(self) -> None:
        launcher = local_launcher(self._setup.files, self._clock)
        grace_s = hurried_grace_s if self._hurry.is_set() else replica_grace_s
        launches = await asyncio.to_thread(launcher.list)
        await asyncio.gather(
            *(asyncio.to_thread(launcher.stop, launch.launch_id, grace_s) for launch in launches)
        )

    def _gateway_spec(self) -> ChildSpec:
        setup = self._setup
        arguments = ["--drain-timeout", f"{drain_timeout_s:g}", *setup.gateway_arguments]
        if setup.allow_public:
            arguments.append("--allow-public")
        return self._spec("gateway", setup.gateway_socket, arguments)

    def _control_spec(self) -> ChildSpec:
        arguments = ["--cache-dir", str(self._setup.cache_dir), "--gateway-url", self.gateway_url]
        arguments += self._setup.control_arguments
        return self._spec("control", self._setup.admin_socket, arguments)

    def _spec(self, command: str, sock: socket.socket, arguments: list[str]) -> ChildSpec:
        setup = self._setup
        host, port = server.address_of(sock)
        return ChildSpec(
            name=command,
            argv=(
                *(sys.executable, "-m", "headrace.cli.main", command),
                *("--data-dir", str(setup.files.data_dir), "--host", host, "--port", str(port)),
                *("--listen-fd", str(sock.fileno())),
                *arguments,
            ),
            # Modules are never looked for in the directory that somebody happens to stand in.
            environment={
                **os.environ,
                **setup.lifeline.environment,
                "PYTHONSAFEPATH": "1",
                **({database_url.variable: setup.database_url} if setup.database_url else {}),
            },
            descriptors=(sock.fileno(), setup.lifeline.descriptor, *setup.inherited),
            log_path=setup.files.logs_dir / f"{command}.log",
        )


@contextlib.contextmanager
def signals_to(loop: asyncio.AbstractEventLoop, handler: Callable[[], None]) -> Iterator[None]:
    """Have the signals that ask a program to end call `handler` meanwhile.

    The end of the terminal is one of them, unless it is ignored (nohup)."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def tell(line: str) -> None:
    """Write a line for people, if there is still somebody who reads."""
    with contextlib.suppress(OSError):
        note(f"headrace: {line}")


def base_url(sock: socket.socket) -> str:
    """The address of a listening socket as this machine's own clients write it."""
    host, port = server.address_of(sock)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- compared only
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def replica_part(replica: Replica) -> Part:
    """A replica as a line of progress."""
    return Part(
        replica.name,
        moods.get(replica.state, "busy"),
        "ready" if replica.state is ReplicaState.ACTIVE else replica.state.value,
        replica.detail,
        replica.progress,
    )


def is_hopeless(replica: Replica) -> bool:
    """Whether it failed as often as a demo is worth trying."""
    return replica.state is ReplicaState.FAILED and replica.attempts >= replica_attempts_max


def ready_json(access: Access) -> bytes:
    """What scripts read of a platform that is ready."""
    return msgspec.json.encode(
        {
            "gateway_url": access.gateway_url,
            "admin_url": access.admin_url,
            "api_key": access.api_key,
            "admin_token": access.admin_token,
        }
    )
