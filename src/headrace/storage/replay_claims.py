"""Who ran a request under an `Idempotency-Key`: one row a key that is in its window.

It outlives the gateway that keeps the answer, and is one for all gateways of a database. A claim
that runs holds as long as its gateway renews it; one that ended well keeps its answer beside it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, select, update

from headrace.base.clock import Clock
from headrace.storage.rows import dialect_insert
from headrace.storage.sessions import Sessions
from headrace.storage.store_time import store_time_s
from headrace.storage.tables import replay_answers, replay_claims


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One key's request, as it stands when it is read."""

    digest: str  # of the key, and of whose it is
    fingerprint: str  # of what was asked
    request_id: str
    gateway_id: str  # its journal's id
    left_s: float  # until it is over; at most 0: it is
    is_done: bool = False  # it ended well and was charged


class Take(NamedTuple):
    """A request wants a key for so long."""

    digest: str
    fingerprint: str
    request_id: str
    gateway_id: str
    lease_s: float


class Renew(NamedTuple):
    """A request still runs, and for so long from now."""

    digest: str
    request_id: str
    lease_s: float


class Finish(NamedTuple):
    """A request ended well: for so long its key runs nothing else."""

    digest: str
    request_id: str
    window_s: float
    answer: bytes | None = None  # None: it is not kept, or was `keep`t before


class Release(NamedTuple):
    """A request came to nothing: its key is free."""

    digest: str
    request_id: str


Change = Take | Renew | Finish | Release
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
answers_bytes_max = 1024 * 1024 * 1024  # of all of them


class ReplayClaims:
    """The claims at rest; synchronous, safe from any thread. Time is the store's."""

    def __init__(
        self, sessions: Sessions, clock: Clock, answer_sessions: Sessions | None = None
    ) -> None:
        """`answer_sessions` have a lock of their own, so that nobody waits for a large answer."""
        self._sessions = sessions
        self._answer_sessions = answer_sessions or sessions
        self._clock = clock
        self._clean_time = 0.0

    def write(self, changes: Sequence[Change]) -> list[Claim | None]:
        """Make all of these changes in one transaction, claims last.

        For each, in their order: the claim that has the key already, None if nothing stands in
        the way. The keys of the claims of one call differ."""
        takes = [change for change in changes if isinstance(change, Take)]
        with self._sessions.write() as connection:
            now = store_time_s(connection, self._clock)
            renewals = [
                {"claimed": each.digest, "by": each.request_id, "until": now + each.lease_s}
                for each in changes
                if isinstance(each, Renew)
            ]
            finished = [each for each in changes if isinstance(each, Finish)]
            ends = [
                {"claimed": each.digest, "by": each.request_id, "until": now + each.window_s}
                for each in finished
            ]
            released = [
                {"claimed": each.digest, "by": each.request_id}
                for each in changes
                if isinstance(each, Release)
            ]
            for statement, rows in ((_renew, renewals), (_finish, ends), (_release, released)):
                if rows:
                    connection.execute(statement, rows)
            for each in finished:
                if each.answer is not None:
                    keep_answer(connection, each.request_id, each.answer, now + each.window_s)
            standing = self._take(connection, takes, now) if takes else {}
        return [standing.get(c.digest) if isinstance(c, Take) else None for c in changes]

    def keep(self, request_id: str, answer: bytes, window_s: float) -> None:
        """Keep what a request was answered, before it is said to have ended."""
        with self._answer_sessions.write() as connection:
            now = store_time_s(connection, self._clock)
            keep_answer(connection, request_id, answer, now + window_s)

    def _take(self, connection: Connection, takes: Sequence[Take], now: float) -> dict[str, Claim]:
        """Claim keys that are free, or whose time is over; whose claims stand already."""
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
            [row_of(each, now) for each in takes],
            execution_options={"preserve_rowcount": True},
        )
        if written.rowcount == len(takes):  # nearly always
            return {}
        wanted = {each.digest: each.request_id for each in takes}
        found = claims_of(connection, wanted, now)
        return {each.digest: each for each in found if each.request_id != wanted[each.digest]}

    def standing(self, digests: Sequence[str]) -> list[Claim | None]:
        """The claim of each of these keys as of now; None: it is free."""
        with self._sessions.read() as connection:
            now = store_time_s(connection, self._clock)
            found = {each.digest: each for each in claims_of(connection, digests, now)}
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
            now = store_time_s(connection, self._clock)
            return [claim_of(row, now) for row in connection.execute(query)]


def row_of(take: Take, now: float) -> dict[str, object]:
    """The columns of a new claim."""
    return {
        "digest": take.digest,
        "fingerprint": take.fingerprint,
        "request_id": take.request_id,
        "gateway_id": take.gateway_id,
        "claim_time": now,
        "expire_time": now + take.lease_s,
        "is_done": False,
    }


def claim_of(row: Row[Any], now: float) -> Claim:
    """A claim by its row."""
    return Claim(
        digest=row.digest,
        fingerprint=row.fingerprint,
        request_id=row.request_id,
        gateway_id=row.gateway_id,
        left_s=row.expire_time - now,
        is_done=row.is_done,
    )


def claims_of(connection: Connection, digests: Iterable[str], now: float) -> list[Claim]:
    """The claims that there are of these keys."""
    query = select(replay_claims).where(replay_claims.c.digest.in_(list(digests)))
    return [claim_of(row, now) for row in connection.execute(query)]


def keep_answer(connection: Connection, request_id: str, answer: bytes, expire_time: float) -> None:
    """Write what was answered; a request is answered once."""
    statement = dialect_insert(connection, replay_answers).on_conflict_do_nothing()
    row = {"request_id": request_id, "answer": answer, "expire_time": expire_time}
    connection.execute(statement, [row])


def clean(connection: Connection, now: float) -> None:
    """Forget what is over, and of the answers those beyond `answers_max` or too many bytes."""
    connection.execute(_expired, {"now": now})
    expire_time = replay_answers.c.expire_time
    newest = select(expire_time).order_by(expire_time.desc()).offset(answers_max).limit(1)
    newer_bytes = func.sum(func.length(replay_answers.c.answer)).over(order_by=expire_time.desc())
    sizes = select(expire_time, newer_bytes.label("newer_bytes")).subquery()
    largest = select(func.max(sizes.c.expire_time)).where(sizes.c.newer_bytes > answers_bytes_max)
    over = [connection.execute(query).scalar_one_or_none() for query in (newest, largest)]
    connection.execute(_expired_answers, {"now": max(now, *(each or now for each in over))})
