"""Who ran a request under an `Idempotency-Key`: one row a key that is in its window.

It outlives the gateway that keeps the answer, and is one for all gateways of a database.
"""

from collections.abc import Collection, Iterable

import msgspec
from sqlalchemy import delete, insert, select, update

from headrace.spec.settlements import Outcome
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


class ReplayClaims:
    """The claims at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def take(self, claim: Claim) -> Claim | None:
        """Claim a key; the claim that stands there already, or None if there was none."""
        columns = replay_claims.c
        with self._sessions.write() as connection:
            connection.execute(delete(replay_claims).where(columns.expire_time <= claim.claim_time))
            row = connection.execute(
                select(replay_claims).where(columns.digest == claim.digest)
            ).one_or_none()
            if row is not None:
                return Claim(**row._mapping)
            connection.execute(insert(replay_claims).values(msgspec.structs.asdict(claim)))
        return None

    def finish(self, digest: str, expire_time: float) -> None:
        """The request ended well: until then its key runs nothing else."""
        with self._sessions.write() as connection:
            connection.execute(
                update(replay_claims)
                .where(replay_claims.c.digest == digest)
                .values(is_done=True, expire_time=expire_time)
            )

    def release(self, digests: Collection[str]) -> None:
        """These requests came to nothing: their keys are free."""
        if digests:
            with self._sessions.write() as connection:
                connection.execute(delete(replay_claims).where(replay_claims.c.digest.in_(digests)))

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
