"""Who ran a request under an `Idempotency-Key`: one row a key that is in its window.

It outlives the gateway that keeps the answer, and is one for all gateways of a database.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, delete, select, update

from headrace.spec.settlements import Outcome
from headrace.storage.rows import dialect_insert
from headrace.storage.sessions import Sessions
from headrace.storage.tables import replay_claims, settlements


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One key's first request."""

    digest: str  # of the key, and of whose it is
    fingerprint: str  # of what was asked
    request_id: str
    gateway_id: str  # its journal's id
    claim_time: float
    expire_time: float
    is_done: bool = False  # it ended well and was charged


class Finish(NamedTuple):
    """A request ended well: until `expire_time` its key runs nothing else."""

    digest: str
    expire_time: float


class Release(NamedTuple):
    """A request came to nothing: its key is free."""

    digest: str


Change = Claim | Finish | Release
_finish = (
    update(replay_claims)
    .where(replay_claims.c.digest == bindparam("claimed"))
    .values(is_done=True, expire_time=bindparam("until"))
)
_release = delete(replay_claims).where(replay_claims.c.digest == bindparam("claimed"))
_expired = delete(replay_claims).where(replay_claims.c.expire_time <= bindparam("now"))
cleaning_interval_s = 30.0  # expired rows hinder nobody


class ReplayClaims:
    """The claims at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._clean_time = 0.0

    def write(self, changes: Sequence[Change]) -> list[Claim | None]:
        """Make all of these changes in one transaction, claims last.

        For each, in their order: the claim that has the key already, None if nothing stands in
        the way. The keys of one call differ."""
        claims = [change for change in changes if isinstance(change, Claim)]
        finished = [
            {"claimed": change.digest, "until": change.expire_time}
            for change in changes
            if isinstance(change, Finish)
        ]
        released = [{"claimed": change.digest} for change in changes if isinstance(change, Release)]
        with self._sessions.write() as connection:
            if finished:
                connection.execute(_finish, finished)
            if released:
                connection.execute(_release, released)
            standing = self._take(connection, claims) if claims else {}
        return [standing.get(c.digest) if isinstance(c, Claim) else None for c in changes]

    def _take(self, connection: Connection, claims: Sequence[Claim]) -> dict[str, Claim]:
        """Claim keys that are free, or whose time is over; whose claims stand already."""
        now = max(claim.claim_time for claim in claims)
        if now >= self._clean_time + cleaning_interval_s:
            connection.execute(_expired, {"now": now})
            self._clean_time = now
        statement = dialect_insert(connection, replay_claims)
        new = statement.excluded
        written = connection.execute(
            statement.on_conflict_do_update(
                index_elements=[replay_claims.c.digest],
                set_={column.name: new[column.name] for column in replay_claims.c},
                where=replay_claims.c.expire_time <= new.claim_time,
            ),
            [msgspec.structs.asdict(claim) for claim in claims],
            execution_options={"preserve_rowcount": True},
        )
        if written.rowcount == len(claims):  # nearly always
            return {}
        wanted = {claim.digest: claim for claim in claims}
        query = select(replay_claims).where(replay_claims.c.digest.in_(wanted))
        found = [Claim(**row._mapping) for row in connection.execute(query)]
        return {each.digest: each for each in found if each != wanted[each.digest]}

    def unfinished(self, gateway_id: str) -> list[Claim]:
        """What a gateway had begun and not ended."""
        columns = replay_claims.c
        query = select(replay_claims).where(
            columns.gateway_id == gateway_id, columns.is_done.is_(False)
        )
        with self._sessions.read() as connection:
            return [Claim(**row._mapping) for row in connection.execute(query)]

    def finished_among(self, request_ids: Iterable[str]) -> set[str]:
        """Which of these requests the ledger has as finished."""
        query = select(settlements.c.request_id).where(
            settlements.c.request_id.in_(list(request_ids)),
            settlements.c.outcome == Outcome.FINISHED.value,
        )
        with self._sessions.read() as connection:
            return set(connection.execute(query).scalars())
