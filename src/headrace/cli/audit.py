"""`headrace audit`: what was done, by whom; proof that the log is whole."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.cli import output
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment

page_records = 1000
records_max = 10_000_000  # of one export, which is written as it is read


class RecordView(msgspec.Struct, frozen=True):
    """What is shown of a record."""

    sequence: int
    record_time: str
    actor_name: str
    action: str
    outcome: str
    target: str
    hash: str


class RawRecords(msgspec.Struct, frozen=True):
    """A part of the log, its records not decoded."""

    items: list[msgspec.Raw]
    next: str | None = None


class Verification(msgspec.Struct, frozen=True):
    """Whether the log is whole."""

    sound: bool
    findings: list[str]
    records: int
    head_hash: str | None


class AuditBroken(HeadraceError):
    """The log is not what was written."""

    code = "audit_broken"


Tenant = Annotated[str | None, typer.Option(help="Only what concerns this tenant.")]


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("audit", "What was done, and by whom: list, export, verify.", app)
    platform_command(group, "list")(list_newest)
    platform_command(group, "export")(export)
    platform_command(group, "verify")(verify)


def list_newest(
    platform: Platform,
    *,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=page_records, help="How many records.")] = 50,
) -> None:
    """List the newest records."""
    query = {"tenant": tenant, "limit": str(limit), "newest_first": "true"}
    platform.show_list(
        platform.client.get("/audit", query),
        RecordView,
        (">NUMBER", "TIME", "WHO", "ACTION", "OUTCOME", "TARGET"),
        lambda record: (
            str(record.sequence),
            format_moment(record.record_time),
            record.actor_name,
            record.action,
            record.outcome,
            record.target,
        ),
        empty="nothing was done yet",
    )


def export(
    platform: Platform,
    *,
    tenant: Tenant = None,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; default: standard output.")
    ] = None,
) -> None:
    """Write every record with its hash, one line of JSON each, the oldest first."""
    try:
        sink = sys.stdout if file is None else file.open("x", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output: {file} can't be made ({error.strerror})") from None
    after: str | None = None
    count = 0
    try:
        while count < records_max:
            query = {"tenant": tenant, "limit": str(page_records), "after": after}
            page = msgspec.json.decode(platform.client.get("/audit", query), type=RawRecords)
            for item in page.items:
                sink.write(bytes(item).decode() + "\n")
            count += len(page.items)
            after = page.next
            if after is None:
                break
    finally:
        if file is not None:
            sink.close()
    output.note(f"{output.format_count(count)} records")


def verify(
    platform: Platform,
    *,
    expect: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="The newest hash must be this one, noted elsewhere."),
    ] = None,
    noted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER:HASH",
            help="The record of this number must have this hash, noted when it was the newest; "
            "repeatable.",
        ),
    ] = None,
) -> None:
    """Recompute every hash; the exit status says whether the log is whole."""
    answer = platform.client.get("/audit/verify", {"noted": ",".join(noted) if noted else None})
    found = msgspec.json.decode(answer, type=Verification)
    platform.show(answer, Verification, _verification_fields)
    if not found.sound:
        raise AuditBroken(f"the audit log is damaged: {found.findings[0]}")
    if expect is not None and expect != found.head_hash:
        raise AuditBroken("the newest hash is not the one that was expected")


def _verification_fields(found: Verification) -> list[tuple[str, str]]:
    return [
        ("records", output.format_count(found.records)),
        ("sound", "yes" if found.sound else "no"),
        *(("finding", finding) for finding in found.findings),
        ("newest hash", found.head_hash or "-"),
    ]
