"""The tables of management: who changed what, what happened, and who is told of it.

audit_records             one row a management action, each with the hash of the row before it
events                    what happened once: a budget half used, a credit used up
webhook_deliveries        one row an event and webhook that is to hear of it
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
)

from headrace.storage.tables import metadata

audit_records = Table(
    "audit_records",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("record_time", Float, nullable=False),
    Column("tenant_id", String(64), nullable=False),  # whose matter it is; empty: the platform's
    Column("actor_id", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("body", LargeBinary, nullable=False),  # the JSON that the hash is of
    Column("hash", String(64), nullable=False),
    Index("ix_audit_records_tenant", "tenant_id", "sequence"),
)

events = Table(
    "events",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("type", String(64), nullable=False),
    Column("tenant_id", String(64), nullable=False),
    Column("occasion", String(255), nullable=False),  # the same occasion is one event
    Column("create_time", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("occasion", name="uq_events_occasion"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("event_id", String(64), ForeignKey("events.id"), primary_key=True),
    Column("webhook_id", String(64), primary_key=True),
    Column("state", String(16), nullable=False),  # pending, delivered, failed
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_time", Float, nullable=False),
    Column("last_status", Integer, nullable=True),
    Column("last_error", String(255), nullable=True),
    Index("ix_webhook_deliveries_due", "state", "next_attempt_time"),
)
