"""The audit log at rest: records are added, read and verified, and never changed.

A record is added in the transaction of the change that it tells of: both are there, or neither.
"""

from collections.abc import Iterator, Mapping

import msgspec
from sqlalchemy import Connection, Row, insert, select, update

from headrace.spec.audit import (
    AuditRecord,
    ChainedRecord,
    chain_hash,
    encode_record,
    first_hash,
)
from headrace.storage.management_tables import audit_records
from headrace.storage.sessions import Sessions
from headrace.storage.tables import counters

page_records = 1000  # read at once while the log is walked
findings_max = 20  # a damaged log is damaged; the first places tell where


class AuditLog:
    """The log; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def append(
        self,
        *,
        record_time: float,
        actor_kind: str,
        actor_id: str,
        actor_name: str,
        action: str,
        outcome: str = "done",
        tenant_id: str = "",
        target: str = "",
        detail: Mapping[str, object] | None = None,
    ) -> ChainedRecord:
        """Add a record, in the transaction that this thread is in if there is one."""
        with self._sessions.write() as connection:
            sequence = _next_sequence(connection)
            record = AuditRecord(
                sequence=sequence,
                record_time=record_time,
                actor_kind=actor_kind,
                actor_id=actor_id,
                actor_name=actor_name,
                action=action,
                outcome=outcome,
                tenant_id=tenant_id,
                target=target,
                detail=detail or {},
            )
            body = encode_record(record)
            digest = chain_hash(_hash_of(connection, sequence - 1), body)
            connection.execute(
                insert(audit_records).values(
                    sequence=sequence,
                    record_time=record_time,
                    tenant_id=tenant_id,
                    actor_id=actor_id,
                    action=action,
                    body=body,
                    hash=digest,
                )
            )
        return ChainedRecord(record=record, hash=digest)

    def read(
        self,
        *,
        after: int = 0,
        limit: int,
        tenant_id: str | None = None,
        newest_first: bool = False,
    ) -> list[ChainedRecord]:
        """Records in order; `after` is the sequence to go on from, `tenant_id` None: of all."""
        column = audit_records.c.sequence
        query = select(audit_records).limit(limit)
        if newest_first:
            query = query.order_by(column.desc())
            query = query.where(column < after) if after else query
        else:
            query = query.order_by(column).where(column > after)
        if tenant_id is not None:
            query = query.where(audit_records.c.tenant_id == tenant_id)
        with self._sessions.read() as connection:
            return [_chained(row) for row in connection.execute(query)]

    def verify(self, trusted: Mapping[int, str] | None = None) -> list[str]:
        """What is wrong with the chain, in words; empty if it is whole. Reads everything.

        `trusted` are hashes by sequence that were noted elsewhere: without one, nobody can tell
        that the newest records were cut off, or everything rewritten."""
        findings: list[str] = []
        unseen = dict(trusted or {})
        previous, expected = first_hash, 1
        for row in self._walk():
            if len(findings) >= findings_max:
                break
            findings += _findings(row, expected, previous)
            if row.sequence in unseen and unseen.pop(row.sequence) != row.hash:
                findings.append(f"record {row.sequence} has not the hash that was noted for it")
            previous, expected = row.hash, row.sequence + 1
        with self._sessions.read() as connection:
            counted = connection.execute(
                select(counters.c.value).where(counters.c.name == "audit")
            ).scalar_one()
        if counted != expected - 1 and len(findings) < findings_max:
            findings.append(f"{counted} records were written, and the last is {expected - 1}")
        findings += [f"record {sequence}, noted elsewhere, is missing" for sequence in unseen]
        return findings

    def _walk(self) -> Iterator[Row[tuple[int, float, str, str, str, bytes, str]]]:
        after = 0
        while True:
            query = (
                select(audit_records)
                .where(audit_records.c.sequence > after)
                .order_by(audit_records.c.sequence)
                .limit(page_records)
            )
            with self._sessions.read() as connection:
                rows = connection.execute(query).all()
            yield from rows
            if len(rows) < page_records:
                return
            after = rows[-1].sequence


def _next_sequence(connection: Connection) -> int:
    """The next number; the row stays locked until the transaction ends, so the chain has no gap."""
    return int(
        connection.execute(
            update(counters)
            .where(counters.c.name == "audit")
            .values(value=counters.c.value + 1)
            .returning(counters.c.value)
        ).scalar_one()
    )


def _hash_of(connection: Connection, sequence: int) -> str:
    if sequence == 0:
        return first_hash
    query = select(audit_records.c.hash).where(audit_records.c.sequence == sequence)
    found = connection.execute(query).scalar_one_or_none()
    return first_hash if found is None else str(found)  # `verify` reports the gap


def _chained(row: Row[tuple[int, float, str, str, str, bytes, str]]) -> ChainedRecord:
    return ChainedRecord(record=msgspec.json.decode(row.body, type=AuditRecord), hash=row.hash)


def _findings(
    row: Row[tuple[int, float, str, str, str, bytes, str]], expected: int, previous: str
) -> list[str]:
    findings = []
    if row.sequence != expected:
        findings.append(f"record {expected} is missing; {row.sequence} comes in its place")
    if not isinstance(row.body, bytes):  # SQLite keeps whatever type it is given
        return [*findings, f"record {row.sequence} can't be read"]
    if chain_hash(previous, row.body) != row.hash:
        findings.append(f"record {row.sequence} does not follow from the one before it")
    try:
        record = _chained(row).record
    except msgspec.MsgspecError:
        return [*findings, f"record {row.sequence} can't be read"]
    columns = (row.sequence, row.record_time, row.tenant_id, row.actor_id, row.action)
    written = (
        record.sequence,
        record.record_time,
        record.tenant_id,
        record.actor_id,
        record.action,
    )
    if columns != written:
        findings.append(f"record {row.sequence} is filed under other values than it has")
    return findings
