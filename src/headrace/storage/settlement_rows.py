"""Settled requests one by one, the newest first: the rows behind every sum."""

from collections.abc import Mapping

import msgspec
from sqlalchemy import and_, or_, select

from headrace.storage.sessions import Sessions
from headrace.storage.tables import settlements
from headrace.storage.usage import UsageDimension

filter_names = ("outcome", "replica_id")  # besides the dimensions of usage


class SettledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was settled; without an amount it is unrated."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    model: str
    outcome: str
    source: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    amount_nanousd: int | None
    price_book_id: str | None
    replica_id: str | None
    settle_time: float
    reasoning_tokens: int | None = None  # nobody counted them, here and below
    draft_tokens: int | None = None
    embedding_tokens: int | None = None
    image_tokens: int | None = None
    images: int | None = None
    audio_ms: int | None = None
    characters: int | None = None
    price_percent: int | None = None  # of the book's prices; None: all of them


class SettlementRows:
    """Reads them; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def read(
        self,
        filters: Mapping[str, str],
        *,
        since: float | None = None,
        until: float | None = None,
        before: tuple[float, str] | None = None,
        limit: int,
    ) -> list[SettledRequest]:
        """At most `limit` requests in `[since, until)`; `before` is the last one's time and id.

        A filter is a dimension of usage (`tenant`, `model`, ...), `outcome` or `replica_id`."""
        table = settlements
        query = select(*(table.c[name] for name in SettledRequest.__struct_fields__))
        for name, value in filters.items():
            column = name if name in filter_names else UsageDimension.parse(name).value
            query = query.where(table.c[column] == value)
        if since is not None:
            query = query.where(table.c.settle_time >= since)
        if until is not None:
            query = query.where(table.c.settle_time < until)
        if before is not None:
            time_s, request_id = before
            same_moment = and_(table.c.settle_time == time_s, table.c.request_id < request_id)
            query = query.where(or_(table.c.settle_time < time_s, same_moment))
        query = query.order_by(table.c.settle_time.desc(), table.c.request_id.desc()).limit(limit)
        with self._sessions.read() as connection:
            return [SettledRequest(**row._mapping) for row in connection.execute(query)]
