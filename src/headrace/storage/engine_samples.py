"""What the engines' own counters said, and what was billed meanwhile, by replica."""

from collections import defaultdict
from collections.abc import Mapping

import msgspec
from sqlalchemy import case, delete, func, insert, select

from headrace.spec.settlements import UsageSource
from headrace.storage.sessions import Sessions
from headrace.storage.tables import engine_samples, settlements

forgotten_at_once_s = 86_400.0  # so that no write holds up the ledger's for long


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one engine process at a moment."""

    replica_id: str
    sample_time: float
    generation: str  # of the process; another one counts from 0 again
    prompt_tokens: int
    completion_tokens: int
    running_requests: int | None = None


class BilledTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled for one replica."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    inexact_requests: int = 0  # that somebody else than the engine counted


class EngineSamples:
    """The samples at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, samples: list[EngineSample]) -> None:
        """Keep samples, of which no replica has two at a time."""
        if samples:
            rows = [msgspec.structs.asdict(sample) for sample in samples]
            with self._sessions.write() as connection:
                connection.execute(insert(engine_samples), rows)

    def forget(self, before: float) -> int:
        """Delete the oldest samples taken before then, a day of them at most; how many."""
        column = engine_samples.c.sample_time
        with self._sessions.read() as connection:
            oldest: float | None = connection.execute(select(func.min(column))).scalar_one()
        if oldest is None or oldest >= before:
            return 0
        until = min(before, oldest + forgotten_at_once_s)
        with self._sessions.write() as connection:
            return connection.execute(delete(engine_samples).where(column < until)).rowcount

    def read(self, since: float, until: float) -> Mapping[str, list[EngineSample]]:
        """The samples in `[since, until)` by replica, in order of time."""
        query = (
            select(engine_samples)
            .where(engine_samples.c.sample_time >= since, engine_samples.c.sample_time < until)
            .order_by(engine_samples.c.replica_id, engine_samples.c.sample_time)
        )
        found: dict[str, list[EngineSample]] = defaultdict(list)
        with self._sessions.read() as connection:
            for row in connection.execute(query):
                found[row.replica_id].append(EngineSample(**row._mapping))
        return found

    def billed(self, replica_id: str, since: float, until: float) -> BilledTokens:
        """What was settled for a replica in `[since, until)`."""
        exact = case((settlements.c.source == UsageSource.ENGINE.value, 0), else_=1)
        query = select(
            func.coalesce(func.sum(settlements.c.prompt_tokens), 0).label("prompt_tokens"),
            func.coalesce(func.sum(settlements.c.completion_tokens), 0).label("completion_tokens"),
            func.count().label("requests"),
            func.coalesce(func.sum(exact), 0).label("inexact_requests"),
        ).where(
            settlements.c.replica_id == replica_id,
            settlements.c.settle_time >= since,
            settlements.c.settle_time < until,
        )
        with self._sessions.read() as connection:
            row = connection.execute(query).one()._mapping
        return BilledTokens(**{name: int(value) for name, value in row.items()})
