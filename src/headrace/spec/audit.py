"""One management action as the audit log keeps it, and the hash that chains it to the one before.

    hash(n) = SHA-256(hash(n-1) as hexadecimal text, newline, body(n))

`body` is the record's own JSON. Whoever changes, removes or inserts a record has to rewrite every
hash after it, so one hash that was written down elsewhere proves everything up to its record.
"""

import hashlib
from collections.abc import Mapping

import msgspec

first_hash = "0" * 64  # before the first record


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what to what, and when."""

    sequence: int  # 1, 2, 3, ...
    record_time: float  # seconds since the Unix epoch
    actor_kind: str  # token, user, service_account, nobody
    actor_id: str
    actor_name: str
    action: str  # the operation's name in the admin API's document
    outcome: str  # done, refused
    tenant_id: str = ""  # whose matter it is; empty: the platform's
    target: str = ""  # the path that was asked, without the query
    detail: Mapping[str, object] = {}  # what was sent, without secrets


class ChainedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record with its hash."""

    record: AuditRecord
    hash: str


def encode_record(record: AuditRecord) -> bytes:
    """The bytes that are kept and hashed."""
    return msgspec.json.encode(record, order="deterministic")


def chain_hash(previous_hash: str, body: bytes) -> str:
    """The hash of a record after the one with `previous_hash`."""
    return hashlib.sha256(previous_hash.encode() + b"\n" + body).hexdigest()
