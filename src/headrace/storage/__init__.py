"""The store of desired state and the ledger's tables: one SQL layer, its migrations.

Reading order: `database` (what is opened), `sqlite`, `postgres` (how), `store` (resources),
`ledger_store` (money and usage), `tables`, `migrate`, `failures` (driver errors in our words).
"""

from headrace.storage.database import Database
from headrace.storage.ledger_store import LedgerSnapshot, LedgerStore
from headrace.storage.opening import open_database, open_limits, recount_limits
from headrace.storage.postgres import open_postgres
from headrace.storage.sqlite import open_sqlite
from headrace.storage.store import Store
from headrace.storage.usage import UsageDimension, UsageRow

__all__ = [
    "Database",
    "LedgerSnapshot",
    "LedgerStore",
    "Store",
    "UsageDimension",
    "UsageRow",
    "open_database",
    "open_limits",
    "open_postgres",
    "open_sqlite",
    "recount_limits",
]
