"""Who ran a request under an `Idempotency-Key`: one row a key that is in its window.

It outlives the gateway that keeps the answer, and is one for all gateways of a database. A claim
that runs holds as long as its gateway renews it; one that ended well keeps its answer beside it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, delete, select, update

from headrace.storage.rows import dialect_insert
from headrace.storage.sessions import Sessions
from headrace.storage.tables import replay_answers, replay_claims


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One key's request."""

    digest: str  # of the key, and of whose it is
    fingerprint: str  # of what was asked
    request_id: str
    gateway_id: str  # its journal's id
    claim_time: float
    expire_time: float
    is_done: bool = False  # it ended well and was charged


class Renew(NamedTuple):
    """A request still runs."""

    digest: str
    request_id: str
    expire_time: float


class Finish(NamedTuple):
    """A request ended well: until `expire_time` its key runs nothing else."""

    digest: str
    request_id: str
    expire_time: float
    answer: bytes | None = None  # None: it is not kept


class Release(NamedTuple):
    """A request came to nothing: its key is free."""

    digest: str
    request_id: str


Change = Claim | Renew | Finish | Release
_is_claimed = (replay_claims.c.digest == bindparam("claimed")) & (
    replay_claims.c.request_id == bindparam("by")
)
_renew = update(replay_claims).where(_is_claimed).values(expire_time=bindparam("until"))
_finish = _renew.values(is_done=True)
_release = delete(replay_claims).where(_is_claimed)
_expired = delete(replay_claims).where(replay_claims.c.expire_time <= bindparam("now"))
_expired_answers = delete(replay_answers).where(replay_answers.c.expire_time <= bindparam("now"))
cleaning_interval_s = 30.0  # expired rows hinder nobody
answers_max = 20_000  # those that would be kept longest stay


class ReplayClaims:
    """The claims at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._clean_time = 0.0

    def write(self, changes: Sequence[Change]) -> list[Claim | None]:
        """Make all of these changes in one transaction, claims last.

        For each, in their order: the claim that has the key already, None if nothing stands in
        the way. The keys of the claims of one call differ."""
        claims = [change for change in changes if isinstance(change, Claim)]
        finished = [change for change in changes if isinstance(change, Finish)]
        with self._sessions.write() as connection:
            for statement, kind in ((_renew, Renew), (_finish, Finish)):
                rows = [
                    {"claimed": each.digest, "by": each.request_id, "until": each.expire_time}
                    for each in changes
                    if isinstance(each, kind)
                ]
                if rows:
                    connection.execute(statement, rows)
            released = [
                {"claimed": each.digest, "by": each.request_id}
                for each in changes
                if isinstance(each, Release)
            ]
            if released:
                connection.execute(_release, released)
            keep_answers(connection, finished)
            standing = self._take(connection, claims) if claims else {}
        return [standing.get(c.digest) if isinstance(c, Claim) else None for c in changes]

    def _take(self, connection: Connection, claims: Sequence[Claim]) -> dict[str, Claim]:
        """Claim keys that are free, or whose time is over; whose claims stand already."""
        now = max(claim.claim_time for claim in claims)
        if now >= self._clean_time + cleaning_interval_s:
            clean(connection, now)
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
        found = claims_of(connection, wanted)
        return {each.digest: each for each in found if each != wanted[each.digest]}

    def standing(self, digests: Sequence[str]) -> list[Claim | None]:
        """The claim of each of these keys as of now; None: it is free."""
        with self._sessions.read() as connection:
            found = {each.digest: each for each in claims_of(connection, digests)}
        return [found.get(digest) for digest in digests]

    def answer(self, request_id: str) -> bytes | None:
        """What was kept of a request that ended well; None: nothing."""
        query = select(replay_answers.c.answer).where(replay_answers.c.request_id == request_id)
        with self._sessions.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def unfinished(self, gateway_id: str) -> list[Claim]:
        """What a gateway had begun and not ended."""
        columns = replay_claims.c
        query = select(replay_claims).where(
            columns.gateway_id == gateway_id, columns.is_done.is_(False)
        )
        with self._sessions.read() as connection:
            return [Claim(**row._mapping) for row in connection.execute(query)]


def claims_of(connection: Connection, digests: Iterable[str]) -> list[Claim]:
    """The claims that there are of these keys."""
    query = select(replay_claims).where(replay_claims.c.digest.in_(list(digests)))
    return [Claim(**row._mapping) for row in connection.execute(query)]


def keep_answers(connection: Connection, finished: Iterable[Finish]) -> None:
    """Write what was answered, as far as it is kept; a request is answered once."""
    rows = [
        {"request_id": each.request_id, "answer": each.answer, "expire_time": each.expire_time}
        for each in finished
        if each.answer is not None
    ]
    if rows:
        statement = dialect_insert(connection, replay_answers).on_conflict_do_nothing()
        connection.execute(statement, rows)


def clean(connection: Connection, now: float) -> None:
    """Forget what is over, and of the answers those beyond `answers_max`."""
    connection.execute(_expired, {"now": now})
    newest = (
        select(replay_answers.c.expire_time)
        .order_by(replay_answers.c.expire_time.desc())
        .offset(answers_max)
        .limit(1)
    )
    over = connection.execute(newest).scalar_one_or_none()
    connection.execute(_expired_answers, {"now": now if over is None else max(now, over)})
