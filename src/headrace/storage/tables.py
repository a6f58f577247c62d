"""The tables, in the portable part of SQL; `migrations/` is how they came to be.

resources                 one row a resource, its body as JSON
counters                  the store's revision
accounts                  who owes whom: totals of an account's postings
entries ──< postings      append-only double entry; debits equal credits in every entry
settlements               one row a request, its usage and charge; unique request id
usage_daily               sums of settlements a day, kept in the same transaction
journal_cursors           how far each gateway's journal is in these tables
limit_gateways            who leases from the shared limits, and what it has reported
limit_leases              what a gateway may still use of a limit
limit_uses                what was used of a limit, by window
device_use                how long each replica held devices, by day
learnt_loads              what the autoscaler found a replica to bear
replay_claims             which request ran under an Idempotency-Key, until its window ends
replay_answers            what it was answered, as long
charged_keys              which request was charged for an Idempotency-Key
engine_samples            what a replica's own counters said, and when
reconciliation_reports    how that agreed with what was billed, hour by hour
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData()

resources = Table(
    "resources",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("parent_id", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("kind", "parent_id", "name", name="uq_resources_kind_parent_name"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("tenant_id", String(64), nullable=True),  # None: one of the platform's own
    Column("debits_nanousd", BigInteger, nullable=False),
    Column("credits_nanousd", BigInteger, nullable=False),
)

entries = Table(
    "entries",
    metadata,
    Column("id", String(128), primary_key=True),  # the request id, or the caller's own
    Column("kind", String(16), nullable=False),  # settlement | credit
    Column("reason", String(255), nullable=False),
    Column("post_time", Float, nullable=False),
)

postings = Table(
    "postings",
    metadata,
    Column("entry_id", String(128), ForeignKey("entries.id"), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("account_id", String(128), ForeignKey("accounts.id"), nullable=False),
    Column("debit_nanousd", BigInteger, nullable=False),
    Column("credit_nanousd", BigInteger, nullable=False),
)

settlements = Table(
    "settlements",
    metadata,
    Column("request_id", String(128), ForeignKey("entries.id"), primary_key=True),
    Column("tenant_id", String(64), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("model", String(255), nullable=False),
    Column("day", String(10), nullable=False),  # of `settle_time`, UTC, YYYY-MM-DD
    Column("outcome", String(16), nullable=False),
    Column("source", String(16), nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("price_book_id", String(64), nullable=True),  # None: unrated
    Column("input_nanousd", BigInteger, nullable=True),
    Column("cached_input_nanousd", BigInteger, nullable=True),
    Column("output_nanousd", BigInteger, nullable=True),
    Column("waived_nanousd", BigInteger, nullable=True),
    Column("amount_nanousd", BigInteger, nullable=True),
    Column("settle_time", Float, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=True),  # None: nobody counted
    Column("reasoning_nanousd", BigInteger, nullable=True),
    Column("draft_tokens", BigInteger, nullable=True),
    Column("draft_nanousd", BigInteger, nullable=True),
    Column("embedding_tokens", BigInteger, nullable=True),
    Column("embedding_nanousd", BigInteger, nullable=True),
    Column("image_tokens", BigInteger, nullable=True),
    Column("image_nanousd", BigInteger, nullable=True),
    Column("replica_id", String(64), nullable=True),  # the engine that counted
    Column("price_percent", Integer, nullable=True),  # of the book's prices; None: all of them
    Column("unit_requests", BigInteger, nullable=True),  # None: nobody counted, here and below
    Column("images", BigInteger, nullable=True),
    Column("audio_ms", BigInteger, nullable=True),
    Column("characters", BigInteger, nullable=True),
    Column("per_request_nanousd", BigInteger, nullable=True),
    Column("per_image_nanousd", BigInteger, nullable=True),
    Column("per_second_nanousd", BigInteger, nullable=True),
    Column("per_character_nanousd", BigInteger, nullable=True),
    Column("is_borne", Boolean, nullable=True),  # by the platform; None: it is not
    Index("ix_settlements_settle_time", "settle_time"),
)

usage_daily = Table(
    "usage_daily",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("tenant_id", String(64), primary_key=True),
    Column("project_id", String(64), primary_key=True),
    Column("key_id", String(64), primary_key=True),
    Column("model", String(255), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("finished", BigInteger, nullable=False),
    Column("aborted", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("unrated", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("amount_nanousd", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False, server_default="0"),
    Column("draft_tokens", BigInteger, nullable=False, server_default="0"),
    Column("embedding_tokens", BigInteger, nullable=False, server_default="0"),
    Column("image_tokens", BigInteger, nullable=False, server_default="0"),
    Column("images", BigInteger, nullable=False, server_default="0"),
    Column("audio_ms", BigInteger, nullable=False, server_default="0"),
    Column("characters", BigInteger, nullable=False, server_default="0"),
)

journal_cursors = Table(
    "journal_cursors",
    metadata,
    Column("journal_id", String(64), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)

limit_gateways = Table(
    "limit_gateways",
    metadata,
    Column("gateway_id", String(64), primary_key=True),  # its journal's id
    Column("operation", BigInteger, nullable=False),  # the newest; older ones come too late
    Column("report", BigInteger, nullable=False),  # the newest report of use that is in the uses
    Column("sequence", BigInteger, nullable=False),  # settlements up to here are in the uses
    Column("seen_time", Float, nullable=False),
)

limit_leases = Table(
    "limit_leases",
    metadata,
    Column("limit_key", String(512), primary_key=True),
    Column("gateway_id", String(64), primary_key=True),
    Column("amount", BigInteger, nullable=False),
    Index("ix_limit_leases_gateway", "gateway_id"),
)

limit_uses = Table(
    "limit_uses",
    metadata,
    Column("limit_key", String(512), primary_key=True),
    Column("window_number", BigInteger, primary_key=True),
    Column("amount", BigInteger, nullable=False),
)

engine_samples = Table(
    "engine_samples",
    metadata,
    Column("replica_id", String(64), primary_key=True),
    Column("sample_time", Float, primary_key=True),
    Column("generation", String(64), nullable=False),  # another one counts from 0 again
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("running_requests", BigInteger, nullable=True),
    Index("ix_engine_samples_sample_time", "sample_time"),
)

reconciliation_reports = Table(
    "reconciliation_reports",
    metadata,
    Column("begin_time", Float, primary_key=True),
    Column("end_time", Float, nullable=False),
    Column("make_time", Float, nullable=False),
    Column("difference_tokens", BigInteger, nullable=False),
    Column("unexplained_tokens", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),  # the rows, as JSON
)

replay_claims = Table(
    "replay_claims",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("fingerprint", String(128), nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("gateway_id", String(64), nullable=False),
    Column("claim_time", Float, nullable=False),
    Column("expire_time", Float, nullable=False),
    Column("is_done", Boolean, nullable=False),
    Index("ix_replay_claims_expire_time", "expire_time"),
)

replay_answers = Table(
    "replay_answers",
    metadata,
    Column("request_id", String(128), primary_key=True),
    Column("answer", LargeBinary, nullable=False),
    Column("expire_time", Float, nullable=False),
    Index("ix_replay_answers_expire_time", "expire_time"),
)

charged_keys = Table(
    "charged_keys",
    metadata,
    Column("digest", String(64), nullable=False),
    Column("request_id", String(128), primary_key=True),
    Column("begin_time", Float, nullable=False),
    Column("settle_time", Float, nullable=False),
    Index("ix_charged_keys_digest", "digest"),
    Index("ix_charged_keys_settle_time", "settle_time"),
)

device_use = Table(
    "device_use",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("replica_id", String(64), primary_key=True),
    Column("device_type", String(64), primary_key=True),
    Column("deployment_id", String(64), nullable=False),
    Column("model", String(255), nullable=False),
    Column("held_s", Float, nullable=False),
    Column("busy_s", Float, nullable=False),
)

learnt_loads = Table(
    "learnt_loads",
    metadata,
    Column("deployment_id", String(64), primary_key=True),
    Column("generation", Integer, nullable=False),  # that it was learnt of
    Column("tokens_per_s", Float, nullable=False),  # of a replica
    Column("too_much_tokens_per_s", Float, nullable=True),
    Column("cut_time", Float, nullable=True),  # when that was too much
)
