"""One file with everything that a platform keeps, and the way back into an empty data directory.

    manifest.json     what is in it, and where the database was
    headrace.db       SQLite, copied by its own means while others write; or
    database.dump     PostgreSQL, by `pg_dump`
    files/            the secret for API keys, the journal, what callers stored

The journal is copied before the database. So what was settled meanwhile is in both, where it counts
once, or in neither; the other order could lose what was posted and forgotten in between.
"""

import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from headrace.base.errors import ConfigurationError, SetupError
from headrace.storage.opening import open_database
from headrace.storage.postgres import parse_address

format_version = 1
kept_names = ("journal", "pepper", "content")  # below the data directory, in this order
database_name = "headrace.db"
dump_name = "database.dump"


class Manifest(msgspec.Struct, frozen=True):
    """What a backup says of itself."""

    version: int
    create_time: float
    database: str  # `database_name` or `dump_name`


def write_backup(
    data_dir: Path, target: Path, create_time: float, database_url: str | None = None
) -> None:
    """Write a backup, readable by its owner only, while the platform runs or not.

    ConfigurationError if the target exists or cannot be written, or if there is nothing to keep;
    SetupError if the database cannot be dumped. A target that is there is whole."""
    database = data_dir / database_name
    if database_url is None and not database.exists():
        raise ConfigurationError(f"{data_dir} has no database; name the platform's --data-dir")
    if target.exists():
        raise ConfigurationError(f"{target} exists; name a file that does not")
    with tempfile.TemporaryDirectory(prefix="headrace-backup-") as scratch_name:
        scratch = Path(scratch_name)
        partial = target.with_name(f"{target.name}.partial")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{target} cannot be written ({error.strerror})") from None
        try:
            with os.fdopen(descriptor, "wb") as sink, tarfile.open(fileobj=sink, mode="w") as tar:
                for name in kept_names:
                    add_tree(tar, data_dir / name, f"files/{name}")
                name = database_name if database_url is None else dump_name
                if database_url is None:
                    copy_sqlite(database, scratch / name)
                else:
                    dump_postgres(database_url, scratch / name)
                tar.add(scratch / name, name)
                manifest = scratch / "manifest.json"
                manifest.write_bytes(
                    msgspec.json.encode(Manifest(format_version, create_time, name))
                )
                tar.add(manifest, manifest.name)
                tar.close()
                sink.flush()
                os.fsync(sink.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.rename(target)


def read_backup(source: Path, data_dir: Path, database_url: str | None = None) -> list[str]:
    """Restore into a data directory that is new or empty; what `ledger check` says of it.

    ConfigurationError if something is in the way, SetupError if the file is no backup or damaged.
    The platform must not run. PostgreSQL is restored into an empty database."""
    if data_dir.exists() and any(data_dir.iterdir()):
        raise ConfigurationError(f"{data_dir} is not empty; restore into a new data directory")
    with tempfile.TemporaryDirectory(prefix="headrace-restore-") as scratch_name:
        scratch = Path(scratch_name)
        manifest = unpack(source, scratch)
        is_dump = manifest.database == dump_name
        if is_dump != (database_url is not None):
            raise ConfigurationError(
                "this backup is of PostgreSQL; say with --database-url where it goes"
                if is_dump
                else "this backup is of a database file; leave --database-url out"
            )
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if database_url is not None:
            load_postgres(database_url, scratch / dump_name)
        else:
            shutil.copy2(scratch / database_name, data_dir / database_name)
        for path in (scratch / "files").glob("*"):
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, data_dir / path.name)
    with closing(open_database(data_dir / database_name, database_url)) as database:
        return database.ledger.check()


def add_tree(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add what is there; a segment that was deleted meanwhile is in the database already."""
    for file in files_below(path):
        inside = name if file == path else f"{name}/{file.relative_to(path)}"
        try:
            size = file.stat().st_size
            content = file.open("rb")
        except FileNotFoundError:
            continue
        with content:
            member = tarfile.TarInfo(inside)
            member.size, member.mode = size, 0o600
            tar.addfile(member, content)  # a segment that grows is cut where it was


def files_below(path: Path) -> Iterator[Path]:
    """A file, or the files of a directory in the order of their names."""
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file())


def unpack(source: Path, directory: Path) -> Manifest:
    """Unpack a backup, whose names stay inside the directory."""
    try:
        with tarfile.open(source, "r:") as tar:
            tar.extractall(directory, filter="data")
        manifest = msgspec.json.decode((directory / "manifest.json").read_bytes(), type=Manifest)
    except (OSError, tarfile.TarError, msgspec.MsgspecError) as error:
        raise SetupError(f"{source} is no backup, or it is damaged ({error})") from error
    if manifest.version != format_version:
        raise SetupError(f"{source} was written by a newer headrace; restore it with that one")
    if not (directory / manifest.database).exists():
        raise SetupError(f"{source} is damaged: it has no {manifest.database}")
    return manifest


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database as of one moment, while others write."""
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)


def dump_postgres(url: str, target: Path) -> None:
    """Dump a database as of one moment."""
    run("pg_dump", url, ("--format=custom", "--no-owner", f"--file={target}"))


def load_postgres(url: str, source: Path) -> None:
    """Fill an empty database, or leave it as it was."""
    options = ("--no-owner", "--exit-on-error", "--single-transaction")
    run("pg_restore", url, (*options, "--dbname=", str(source)))


def run(program: str, url: str, options: tuple[str, ...]) -> None:
    """Run one of PostgreSQL's own programs; its environment tells it where, and the password."""
    found = shutil.which(program) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))), None
    )
    if found is None:
        raise ConfigurationError(
            f"{program} is not installed; it comes with PostgreSQL's client programs"
        )
    address = parse_address(url)
    hosts = address.query.get("host", address.host or "")
    environment = {
        "PGHOST": hosts if isinstance(hosts, str) else ",".join(hosts),
        "PGPORT": str(address.port or ""),
        "PGUSER": address.username or "",
        "PGPASSWORD": str(address.password or ""),
        "PGDATABASE": address.database or "",
    }
    named = [f"--dbname={address.database}" if one == "--dbname=" else one for one in options]
    ended = subprocess.run(  # noqa: S603 -- PostgreSQL's own program, without a shell
        [found, *named],
        env={**os.environ, **{name: value for name, value in environment.items() if value}},
        capture_output=True,
        check=False,
    )
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        raise SetupError(f"{program} failed: {said[-1] if said else ended.returncode}")
