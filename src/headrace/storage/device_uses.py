"""How long replicas held devices, and for whom they worked, by UTC day."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import func, select

from headrace.spec.costs import DeviceUse
from headrace.storage.rows import add_many
from headrace.storage.sessions import Sessions
from headrace.storage.tables import device_use, settlements


class ReplicaShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica computed for one tenant."""

    replica_id: str
    tenant_id: str
    computed_tokens: int  # of prompts what was not cached, and all output
    amount_nanousd: int  # what it was charged for that


class DeviceUses:
    """The sums at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, uses: Sequence[DeviceUse]) -> None:
        """Add to the sums."""
        if uses:
            rows = [msgspec.structs.asdict(use) for use in uses]
            with self._sessions.write() as connection:
                add_many(connection, device_use, rows, summed=("held_s", "busy_s"))

    def read(self, first_day: str, last_day: str) -> list[DeviceUse]:
        """The sums of the days from the first to the last, YYYY-MM-DD, both included."""
        columns = device_use.c
        query = (
            select(device_use)
            .where(columns.day >= first_day, columns.day <= last_day)
            .order_by(columns.day, columns.replica_id, columns.device_type)
        )
        with self._sessions.read() as connection:
            return [DeviceUse(**row._mapping) for row in connection.execute(query)]

    def shares(self, first_day: str, last_day: str) -> list[ReplicaShare]:
        """For whom each replica computed how many tokens on those days."""
        columns = settlements.c
        computed = columns.prompt_tokens - columns.cached_tokens + columns.completion_tokens
        query = (
            select(
                columns.replica_id,
                columns.tenant_id,
                func.sum(computed).label("computed_tokens"),
                func.sum(func.coalesce(columns.amount_nanousd, 0)).label("amount_nanousd"),
            )
            .where(
                columns.day >= first_day,
                columns.day <= last_day,
                columns.replica_id.is_not(None),
            )
            .group_by(columns.replica_id, columns.tenant_id)
            .order_by(columns.replica_id, columns.tenant_id)
        )
        with self._sessions.read() as connection:
            return [
                ReplicaShare(
                    replica_id=row.replica_id,
                    tenant_id=row.tenant_id,
                    computed_tokens=int(row.computed_tokens),
                    amount_nanousd=int(row.amount_nanousd),
                )
                for row in connection.execute(query)
            ]
