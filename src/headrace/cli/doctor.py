"""`headrace doctor`: what this machine can do, which kernels run on it, what is missing.

With `--json`: `version`, `python`, `processor`, `cores`, `memory`, `kernels`, `data_dir`,
`cache_dir`, `open_files_max`, and `checks`, each with `name`, `status` (`ok`, `warning` or
`missing`), `value` and `fix`. The exit status is 1 if anything is missing.
"""

import importlib
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec
import typer

from headrace.cli import output
from headrace.cli.machine import (
    Disk,
    Processor,
    open_files_max,
    read_disk,
    read_processor,
)
from headrace.cli.settings import AsJson, CacheDir, DataDir
from headrace.launchers.machine import Cores, Memory, read_cores, read_memory

memory_bytes_min = 500_000_000  # the engine with the demo model and 4,096 tokens of KV
disk_bytes_min = 1_000_000_000  # a small model and room for the journal
open_files_min = 4096  # two sockets a stream, for 2,000 streams
kernels_module = "headrace.kernels"


class Kernels(msgspec.Struct, frozen=True):
    """Which compiled kernels run here; `name` is None where the extension is not built."""

    name: str | None
    problem: str | None = None


class Check(msgspec.Struct, frozen=True):
    """One thing that matters, and what to do about it."""

    name: str
    status: str  # ok | warning | missing
    value: str
    fix: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that doctor knows."""

    version: str
    python: str
    processor: Processor
    cores: Cores
    memory: Memory
    kernels: Kernels
    data_dir: Disk
    cache_dir: Disk
    open_files_max: int
    checks: list[Check]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("doctor")(doctor)


def doctor(data_dir: DataDir, cache_dir: CacheDir, *, as_json: AsJson = False) -> None:
    """Show what this machine can do, which kernels run on it, and what is missing."""
    report = examine(data_dir, cache_dir)
    if as_json:
        output.write_json(report)
    else:
        write_report(report)
    if any(check.status == "missing" for check in report.checks):
        raise typer.Exit(1)


def examine(data_dir: Path, cache_dir: Path) -> Report:
    """Look at everything."""
    processor, cores, memory = read_processor(), read_cores(), read_memory()
    kernels = find_kernels()
    data, cache, files = read_disk(data_dir), read_disk(cache_dir), open_files_max()
    return Report(
        version=version("headrace"),
        python=platform.python_version(),
        processor=processor,
        cores=cores,
        memory=memory,
        kernels=kernels,
        data_dir=data,
        cache_dir=cache,
        open_files_max=files,
        checks=[
            check_kernels(kernels, processor),
            check_memory(memory),
            check_directory("data directory", "--data-dir", data),
            check_directory("cache directory", "--cache-dir", cache),
            check_privacy(data),
            check_open_files(files),
        ],
    )


def find_kernels() -> Kernels:
    """The kernels that were chosen for this processor."""
    try:
        kernels = importlib.import_module(kernels_module)
    except ImportError as error:
        return Kernels(name=None, problem=str(error))
    return Kernels(name=str(kernels.kernel_name()))


def check_kernels(kernels: Kernels, processor: Processor) -> Check:
    """The engine needs its compiled extension; without AVX2 it is slow."""
    if kernels.name is None:
        return Check(
            "kernels",
            "missing",
            f"the compiled extension does not load: {kernels.problem}",
            "build it: `make setup` in the source tree, with g++ and make installed",
        )
    if kernels.name == "portable":
        return Check(
            "kernels",
            "warning",
            f"{kernels.name}, for any {processor.architecture}",
            "none for this processor's instructions; expect a fraction of the speed",
        )
    return Check("kernels", "ok", kernels.name)


def check_memory(memory: Memory) -> Check:
    """A small model fits."""
    value = f"{output.format_bytes(memory.available_bytes)} available"
    if memory.available_bytes < memory_bytes_min:
        return Check(
            "memory",
            "warning",
            value,
            f"the demo model wants {output.format_bytes(memory_bytes_min)}; end other programs",
        )
    return Check("memory", "ok", value)


def check_directory(name: str, option: str, disk: Disk) -> Check:
    """It can be written to, and there is room."""
    value = f"{disk.path}, {output.format_bytes(disk.free_bytes)} free"
    if not disk.writable:
        fix = f"name another with {option}, or give this user the right to write there"
        return Check(name, "missing", f"{disk.path} can't be written to", fix)
    if disk.free_bytes < disk_bytes_min:
        fix = f"free some space, or name another with {option}"
        return Check(name, "warning", value, fix)
    return Check(name, "ok", value if disk.exists else f"{value}, made when it is needed")


def check_privacy(disk: Disk) -> Check:
    """Others can't read the platform's secrets."""
    if disk.mode is not None and int(disk.mode, 8) & 0o077:
        fix = f"chmod 700 {disk.path}"
        return Check("data directory's mode", "warning", f"{disk.mode}, open to others", fix)
    return Check("data directory's mode", "ok", disk.mode or "made with 700")


def check_open_files(count: int) -> Check:
    """Many streams at once need many sockets."""
    if count < open_files_min:
        fix = f"for thousands of streams: `ulimit -n {open_files_min}`"
        return Check("open files", "warning", f"at most {count}", fix)
    return Check("open files", "ok", f"at most {count}")


def write_report(report: Report) -> None:
    """Write the machine, then the checks, the fixes below them."""
    processor, cores = report.processor, report.cores
    fields = [
        ("headrace", f"{report.version}, Python {report.python}"),
        ("processor", f"{processor.name} ({processor.architecture})"),
        ("instructions", " ".join(processor.features) or "none that kernels are written for"),
        ("cores", f"{cores.usable:g} usable of {cores.logical}"),
        ("memory", f"{output.format_bytes(report.memory.total_bytes)} in all"),
    ]
    output.write_fields(fields)
    print()
    rows = [(check.status, check.name, check.value) for check in report.checks]
    output.write_table(("STATUS", "WHAT", "FOUND"), rows, empty="")
    fixes = [check for check in report.checks if check.fix is not None]
    if fixes:
        print()
    for check in fixes:
        print(f"{check.name}: {check.fix}")
