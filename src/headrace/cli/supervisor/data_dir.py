"""The data directory as a supervisor takes it: made private, locked, with its secrets in place.

The lock is held by the open file, which the gateway and the control plane inherit: while one of
them still ends after a killed supervisor, the next one waits instead of running beside it.
"""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.cli.admin_client import AdminAddress
from headrace.cli.platform_files import PlatformFiles
from headrace.launchers.process_identity import birth_of
from headrace.spec.api_key_format import pepper_bytes

lock_patience_s = 3.0  # descendants of a killed supervisor end within this
lock_look_interval_s = 0.05


@contextlib.contextmanager
def locked(files: PlatformFiles) -> Iterator[int]:
    """Hold the directory; the value is the lock's descriptor, for children to inherit.

    ConfigurationError says which process has it, or why it cannot be made."""
    with disk_errors(files.data_dir):
        for directory in (files.data_dir, files.run_dir, files.logs_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, files.data_dir)
        with disk_errors(files.data_dir):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, data_dir: Path) -> None:
    deadline_s = time.monotonic() + lock_patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if _is_process(owner) or time.monotonic() >= deadline_s:
                raise ConfigurationError(
                    f"The data directory {data_dir} is in use by process {owner or '(unknown)'}; "
                    "stop that platform, or choose another directory with --data-dir."
                ) from None
        except OSError as error:
            raise ConfigurationError(
                f"The data directory {data_dir} cannot be locked ({error.strerror}); put it on a "
                "local disk."
            ) from None
        else:
            return
        time.sleep(lock_look_interval_s)


def _is_process(pid: str) -> bool:
    return pid.isdecimal() and birth_of(int(pid)) is not None


def ensure_pepper(files: PlatformFiles) -> bytes:
    """The server's secret for API keys, made at the first start."""
    with disk_errors(files.data_dir):
        if not files.pepper.exists():
            write_private(files.pepper, secrets.token_bytes(pepper_bytes))
        pepper = files.pepper.read_bytes()
    if len(pepper) < pepper_bytes:
        raise ConfigurationError(
            f"{files.pepper} has {len(pepper)} bytes instead of {pepper_bytes}; restore it from a "
            "backup. Without it no API key can be checked."
        )
    return pepper


def write_admin_address(files: PlatformFiles, admin_url: str) -> AdminAddress:
    """A new admin token beside the address, for the commands on this machine."""
    address = AdminAddress(admin_url, secrets.token_urlsafe(32))
    with disk_errors(files.data_dir):
        write_private(files.admin, msgspec.json.encode(address))
    return address


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Turn what a disk refuses into one line that says what to do."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise ConfigurationError(
            f"The data directory {directory} cannot be used ({error.strerror or error}{where}); "
            "check its disk and that it belongs to this user, or choose another with --data-dir."
        ) from None
