"""Machines on networks of their own, joined by cables that can be cut: Linux network namespaces.

    with Network() as network, network.entered():   # this thread is the control plane's machine
        machine = network.add("a")                  # another, reached over a cable
        subprocess.Popen([*machine.command, ...])   # a process there
        machine.cut(); machine.mend()

                     ┌── cable ── a  10.77.1.2
    hub 10.77.0.1 ───┤
                     └── cable ── b  10.77.2.2

Nothing leaves the namespaces: none has a way to this machine's own network. A namespace lives as
long as its descriptor here and the processes in it. It takes root, `ip` and `nsenter`.
"""

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

clone_newnet = 0x40000000  # CLONE_NEWNET of sched.h
hub_address = "10.77.0.1"
programs = ("ip", "nsenter")
machines_max = 200  # addresses are 10.77.N.*


def why_not() -> str | None:
    """Why there can be no networks here; None: there can."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        return f"no {' and '.join(missing)} here: apt-get install iproute2 util-linux"
    try:
        os.close(new_namespace())
    except OSError as error:
        return f"this process may make no network namespaces ({error.strerror}); run it as root"
    return None


def new_namespace() -> int:
    """A descriptor of a new network namespace; OSError if that is not allowed."""
    descriptors: list[int] = []
    errors: list[OSError] = []

    def make() -> None:  # in a thread that ends with it, as a thread leaves its own for good
        try:
            call("unshare", clone_newnet)
            descriptors.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return descriptors[0]


def call(function: str, *arguments: int) -> None:
    """A function of the C library that Python 3.11 lacks. OSError if it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def ip(path: str, *words: str) -> None:
    """Run `ip` in a namespace."""
    subprocess.run(["nsenter", f"--net={path}", "ip", *words], check=True, timeout=30)  # noqa: S603,S607 -- names of our own


class MachineNetwork:
    """One machine's namespace, and its cable to the hub."""

    def __init__(self, hub_path: str, path: str, number: int) -> None:
        self._path = path
        self._hub_end = f"10.77.{number}.1"
        self.address = f"10.77.{number}.2"
        self.command: Sequence[str] = ("nsenter", f"--net={path}")  # runs what follows there
        cable = f"cable{number}"
        ip(hub_path, "link", "add", cable, "type", "veth", "peer", "eth0", "netns", path)
        ip(hub_path, "address", "add", f"{self._hub_end}/30", "dev", cable)
        ip(hub_path, "link", "set", cable, "up")
        ip(path, "address", "add", f"{self.address}/30", "dev", "eth0")
        ip(path, "link", "set", "lo", "up")
        self.mend()

    def cut(self) -> None:
        """The hub's packets are lost and nobody is told, as when a switch dies."""
        ip(self._path, "link", "set", "eth0", "down")

    def mend(self) -> None:
        """All comes through again."""
        ip(self._path, "link", "set", "eth0", "up")
        ip(self._path, "route", "replace", "default", "via", self._hub_end)


class Network:
    """The hub and its machines; all are gone after the block, once their processes ended."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._machines: dict[str, MachineNetwork] = {}
        self._hub = self._open()
        ip(self._path(self._hub), "link", "set", "lo", "up")
        ip(self._path(self._hub), "address", "add", f"{hub_address}/32", "dev", "lo")

    def add(self, name: str) -> MachineNetwork:
        """A machine's network; the same for the same name."""
        if name not in self._machines:
            number = len(self._machines) + 1
            assert number <= machines_max, "more machines than addresses"
            paths = self._path(self._hub), self._path(self._open())
            self._machines[name] = MachineNetwork(*paths, number)
        return self._machines[name]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and the threads and processes that it starts, are at the hub."""
        with open("/proc/thread-self/ns/net") as before:  # noqa: PTH123 -- a descriptor is wanted
            call("setns", self._hub, clone_newnet)
            try:
                yield
            finally:
                call("setns", before.fileno(), clone_newnet)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _open(self) -> int:
        descriptor = new_namespace()
        self._stack.callback(os.close, descriptor)
        return descriptor

    @staticmethod
    def _path(descriptor: int) -> str:
        return f"/proc/{os.getpid()}/fd/{descriptor}"
