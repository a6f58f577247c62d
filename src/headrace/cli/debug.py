"""`headrace debug bundle`: one file with what a maintainer needs to see, without secrets.

    doctor.json          this machine
    api/*.json           what the control plane says: versions, desired and observed state, traffic
    metrics/*.txt        of the control plane, the gateway and the replicas
    logs/*.txt           the end of each process's log
    journal.txt          the journal's files and their sizes
    MANIFEST.txt         what is in it, what is missing and why

Everything is cleaned of secrets, cut to bounds, and plain text that can be read before it is sent.
There are no prompts, answers, customers, prices or invoices in it.
"""

import io
import json
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.base.redaction import Redactor
from headrace.cli.admin_client import AdminClient, find_address
from headrace.cli.doctor import examine
from headrace.cli.output import note
from headrace.cli.platform_files import PlatformFiles
from headrace.cli.settings import AdminToken, AdminUrl, CacheDir, DataDir
from headrace.spec.deployments import Replica
from headrace.spec.engine_key import engine_key_of
from headrace.spec.platform_token import metrics_token, platform_token
from headrace.spec.prefix_key import prefix_cache_key
from headrace.storage import open_sqlite

part_bytes_max = 512 * 1024  # of each file in it; of a log the end, of the rest the beginning
logs_max = 64  # the newest
replicas_max = 64
metrics_timeout_s = 5.0
questions = ("status", "models", "deployments", "replicas", "nodes", "live", "goodput")


@dataclass(slots=True)
class Bundle:
    """Files in the making."""

    redactor: Redactor
    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], bytes], *, keeps_end: bool = False) -> None:
        """Add a file; one that cannot be made is listed with the reason."""
        try:
            content = make()
        except (OSError, HeadraceError) as error:
            self.missing[name] = self.redactor.clean(str(error).encode()).decode(errors="replace")
            return
        cleaned = self.redactor.clean(content)  # before the cut, which may halve a secret
        self.files[name] = cleaned[-part_bytes_max:] if keeps_end else cleaned[:part_bytes_max]

    def write(self, path: Path) -> None:
        """Write all of it as a compressed archive that only its owner can read."""
        manifest = [f"{len(content):>9}  {name}" for name, content in sorted(self.files.items())]
        manifest += [f"  missing  {name}: {why}" for name, why in sorted(self.missing.items())]
        self.files["MANIFEST.txt"] = "\n".join([*manifest, ""]).encode()
        path.touch(0o600, exist_ok=False)
        with tarfile.open(path, "w:gz") as archive:
            for name, content in sorted(self.files.items()):
                entry = tarfile.TarInfo(f"headrace-debug/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="What a maintainer needs: bundle.", no_args_is_help=True)
    app.add_typer(group, name="debug")
    group.callback()(_group)
    group.command("bundle")(bundle)


def _group() -> None:
    """What a maintainer needs: bundle."""


def bundle(
    data_dir: DataDir,
    cache_dir: CacheDir,
    *,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: headrace-debug-TIME.tar.gz.")
    ] = None,
    admin_url: AdminUrl = None,
    admin_token: AdminToken = None,
) -> None:
    """Collect versions, state, metrics and logs into one file, without secrets or prompts."""
    path = out or Path(f"headrace-debug-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if path.exists():
        raise ConfigurationError(f"--out: {path} is there already; name another file.")
    files = PlatformFiles(data_dir.expanduser().absolute())
    made = Bundle(Redactor(known_secrets(files, admin_token)))
    made.add("doctor.json", lambda: msgspec.json.encode(examine(data_dir, cache_dir)))
    add_answers(made, admin_url, admin_token, files)
    add_logs(made, files)
    made.write(path)
    note(f"{path} has {len(made.files)} files; read it before you send it: tar -tzf {path}")


def known_secrets(files: PlatformFiles, admin_token: str | None) -> Iterator[bytes]:
    """What must not get out, as it may stand in a text."""
    if admin_token is not None:
        yield admin_token.encode()
    if files.admin.exists():
        yield str(json.loads(files.admin.read_bytes())["token"]).encode()
    if files.pepper.exists():
        pepper = files.pepper.read_bytes()
        yield pepper
        yield pepper.hex().encode()
        yield platform_token(pepper).encode()
        yield metrics_token(pepper).encode()
        yield prefix_cache_key(pepper).hex().encode()
        if files.database.exists():
            with closing(open_sqlite(files.database)) as database:
                for replica in database.store.list(Replica):
                    yield engine_key_of(pepper, replica).encode()


def add_answers(
    made: Bundle, admin_url: str | None, admin_token: str | None, files: PlatformFiles
) -> None:
    """What the control plane and the gateway say, as far as they answer."""
    try:
        address = find_address(admin_url, admin_token, files.data_dir)
        client = AdminClient(address)
        status = json.loads(client.get("/status"))
    except HeadraceError as error:
        made.missing["api"] = error.message
        return
    for question in questions:
        made.add(f"api/{question}.json", partial(client.get, f"/{question}"))
    urls = {"control": address.admin_url, "gateway": status.get("gateway_url")}
    for name, url in urls.items():
        if url:
            made.add(f"metrics/{name}.txt", partial(read_url, f"{url}/metrics"))
    add_replica_metrics(made, address.admin_url)


def add_replica_metrics(made: Bundle, admin_url: str) -> None:
    """What each replica says, as the control plane leads a scraper to it."""
    try:
        groups = json.loads(read_url(f"{admin_url}/metrics/targets"))
    except (OSError, ValueError) as error:
        made.missing["metrics/replicas"] = str(error)
        return
    for group in groups[:replicas_max]:
        path, name = group["labels"]["__metrics_path__"], group["labels"]["replica"]
        made.add(f"metrics/{name}.txt", partial(read_url, admin_url + path))


def read_url(url: str) -> bytes:
    """What a process of the platform tells any program of this machine."""
    with urllib.request.urlopen(url, timeout=metrics_timeout_s) as answer:  # noqa: S310 -- the platform's own address
        return bytes(answer.read(part_bytes_max))


def add_logs(made: Bundle, files: PlatformFiles) -> None:
    """The ends of the newest logs, and the journal's sizes."""
    logs = sorted(files.logs_dir.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in logs[-logs_max:]:
        made.add(f"logs/{path.stem}.txt", partial(end_of, path), keeps_end=True)
    journal = files.data_dir / "journal"
    if journal.is_dir():
        lines = [f"{path.stat().st_size:>12}  {path.name}" for path in sorted(journal.iterdir())]
        made.add("journal.txt", lambda: "\n".join([*lines, ""]).encode())


def end_of(path: Path) -> bytes:
    """The end of a file, with room for what cleaning takes out."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * part_bytes_max))
        return file.read()
