"""The tables of billing: invoices as they were drawn, and the numbers that they got.

invoices                  one row an invoice; a draft is replaced, a numbered one stays
credit_notes              what takes back some of a numbered invoice
number_series             the last number given, by prefix
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
    text,
)

from headrace.storage.tables import entries, metadata

invoices = Table(
    "invoices",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant_id", String(64), nullable=False),
    Column("first_day", String(10), nullable=False),
    Column("last_day", String(10), nullable=False),
    Column("number", String(64), nullable=True),  # None: a draft
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("number", name="uq_invoices_number"),
    Index("ix_invoices_tenant", "tenant_id", "first_day"),
)

credit_notes = Table(
    "credit_notes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("invoice_id", String(64), ForeignKey("invoices.id"), nullable=False),
    Column("number", String(64), nullable=False),
    Column("net_nanousd", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("number", name="uq_credit_notes_number"),
    Index("ix_credit_notes_invoice", "invoice_id"),
)

number_series = Table(
    "number_series",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

Index(
    "ix_entries_not_settlements",
    entries.c.post_time,
    sqlite_where=text("kind <> 'settlement'"),
    postgresql_where=text("kind <> 'settlement'"),
)
