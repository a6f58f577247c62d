"""Usage by tenant, project, key, model and day: what is asked, what comes back, how it is summed.

Whole UTC days come from the daily sums; a range that cuts a day is summed from settlements.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, case, func, select

from headrace.base.errors import InvalidRequest
from headrace.spec.settlements import summed_outcomes
from headrace.storage.tables import settlements, usage_daily

day_s = 86_400
named_ids_max = 500  # more are not named in a question


class UsageDimension(StrEnum):
    """What usage can be grouped and filtered by; the value is the column's name."""

    TENANT = "tenant_id"
    PROJECT = "project_id"
    KEY = "key_id"
    MODEL = "model"
    DAY = "day"

    @classmethod
    def parse(cls, name: str) -> "UsageDimension":
        """Read `tenant`, `project`, `key`, `model` or `day`, or the column's name."""
        for dimension in cls:
            if name in (dimension.name.lower(), dimension.value):
                return dimension
        known = ", ".join(dimension.name.lower() for dimension in cls)
        raise InvalidRequest(
            f"usage has no dimension {name!r}; choose from {known}", param="group_by"
        )


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over one group; a dimension that was not asked for is None."""

    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    day: str | None = None  # UTC, YYYY-MM-DD
    requests: int
    finished: int
    aborted: int
    failed: int
    unrated: int  # requests whose model had no price; their cost is not in `amount_nanousd`
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    amount_nanousd: int
    # Of the requests whose engines count these classes.
    reasoning_tokens: int = 0
    draft_tokens: int = 0
    embedding_tokens: int = 0
    image_tokens: int = 0
    images: int = 0  # that were made
    audio_ms: int = 0  # that were listened to
    characters: int = 0  # that were read aloud

    @property
    def rejected(self) -> int:
        """Requests that an engine refused for what the caller sent."""
        return self.requests - self.finished - self.aborted - self.failed


class GroupUse(NamedTuple):
    """What one group used."""

    ids: tuple[str, ...]  # in the order of the question's dimensions
    tokens: int
    amount_nanousd: int


class_names = ("reasoning_tokens", "draft_tokens", "embedding_tokens", "image_tokens")
unit_sum_names = ("images", "audio_ms", "characters")
sum_names = (
    "requests",
    "finished",
    "aborted",
    "failed",
    "unrated",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "amount_nanousd",
    *class_names,
    *unit_sum_names,
)


def day_of(time_s: float) -> str:
    """The UTC day of a time."""
    return _named_day(int(time_s // day_s))


@functools.lru_cache(maxsize=16)  # all of a batch are of one day, or two
def _named_day(number: int) -> str:
    """A day by how many were before it since 1970."""
    return datetime.fromtimestamp(number * day_s, UTC).strftime("%Y-%m-%d")


def settlement_sums() -> list[ColumnElement[int]]:
    """The columns of `sum_names` from settlements."""

    def counted(condition: ColumnElement[bool]) -> ColumnElement[int]:
        return func.sum(case((condition, 1), else_=0))

    outcome = settlements.c.outcome
    return [
        func.count().label("requests"),
        *(counted(outcome == value).label(value) for value in summed_outcomes),
        counted(settlements.c.amount_nanousd.is_(None)).label("unrated"),
        func.sum(settlements.c.prompt_tokens).label("prompt_tokens"),
        func.sum(settlements.c.cached_tokens).label("cached_tokens"),
        func.sum(settlements.c.completion_tokens).label("completion_tokens"),
        func.sum(func.coalesce(settlements.c.amount_nanousd, 0)).label("amount_nanousd"),
        *(
            func.sum(func.coalesce(settlements.c[name], 0)).label(name)
            for name in (*class_names, *unit_sum_names)
        ),
    ]


def daily_query(
    groups: Sequence[UsageDimension], since: float | None, until: float | None
) -> Select[tuple[object, ...]]:
    """Sums of the daily sums."""
    table = usage_daily
    query = select(
        *(table.c[group.value] for group in groups),
        *(func.sum(table.c[name]).label(name) for name in sum_names),
    )
    if since is not None:
        query = query.where(table.c.day >= day_of(since))
    if until is not None:
        query = query.where(table.c.day < day_of(until))
    return query


def exact_query(
    groups: Sequence[UsageDimension], since: float | None, until: float | None
) -> Select[tuple[object, ...]]:
    """Sums of settlements."""
    table = settlements
    query = select(*(table.c[group.value] for group in groups), *settlement_sums())
    if since is not None:
        query = query.where(table.c.settle_time >= since)
    if until is not None:
        query = query.where(table.c.settle_time < until)
    return query


def spent(connection: Connection, tenant_id: str, since: float, until: float) -> int:
    """Nano-dollars that a tenant was charged in `[since, until)`.

    Whole UTC days inside it come from the daily sums, so that a long span costs little."""
    first, last = -(-since // day_s) * day_s, until // day_s * day_s
    if first >= last:
        return exactly_spent(connection, tenant_id, since, until)
    whole = connection.execute(
        select(func.coalesce(func.sum(usage_daily.c.amount_nanousd), 0)).where(
            usage_daily.c.tenant_id == tenant_id,
            usage_daily.c.day >= day_of(first),
            usage_daily.c.day < day_of(last),
        )
    ).scalar_one()
    ends = ((since, first), (last, until))
    return int(whole) + sum(exactly_spent(connection, tenant_id, *bounds) for bounds in ends)


def exactly_spent(connection: Connection, tenant_id: str, since: float, until: float) -> int:
    """The same from the settlements themselves."""
    if since >= until:
        return 0
    return int(
        connection.execute(
            select(func.coalesce(func.sum(settlements.c.amount_nanousd), 0)).where(
                settlements.c.settle_time >= since,
                settlements.c.settle_time < until,
                settlements.c.tenant_id == tenant_id,
            )
        ).scalar_one()
    )


def read_usage(
    connection: Connection,
    groups: Sequence[UsageDimension],
    since: float | None,
    until: float | None,
    filters: Mapping[UsageDimension, str],
) -> list[UsageRow]:
    """Sums by group, in the order of the groups' values."""
    whole_days = all(bound is None or bound % day_s == 0 for bound in (since, until))
    table = usage_daily if whole_days else settlements
    query = (daily_query if whole_days else exact_query)(groups, since, until)
    for dimension, value in filters.items():
        query = query.where(table.c[dimension.value] == value)
    columns = [table.c[group.value] for group in groups]
    if columns:
        query = query.group_by(*columns).order_by(*columns)
    rows = [row._mapping for row in connection.execute(query)]
    # Without groups SQL answers one row of NULLs where there is nothing to sum.
    return [
        msgspec.convert(
            {
                **{group.value: row[group.value] for group in groups},
                **{name: int(row[name]) for name in sum_names},
            },
            UsageRow,
        )
        for row in rows
        if row["requests"]
    ]


def read_uses(
    connection: Connection,
    groups: Sequence[UsageDimension],
    since: float,
    ids: Collection[str] | None,
) -> list[GroupUse]:
    """Tokens and amounts by group since then; with few `ids`, those of the first dimension alone.

    A third of the cost of `read_usage`, whose other sums this leaves out."""
    table = settlements if since % day_s else usage_daily
    tokens = func.sum(table.c.prompt_tokens + table.c.completion_tokens)
    amount = func.sum(func.coalesce(table.c.amount_nanousd, 0))
    columns = [table.c[group.value] for group in groups]
    query = select(*columns, tokens, amount).group_by(*columns)
    if since % day_s:
        query = query.where(settlements.c.settle_time >= since)
    else:
        query = query.where(usage_daily.c.day >= day_of(since))
    if ids is not None and len(ids) <= named_ids_max:
        query = query.where(columns[0].in_(sorted(ids)))
    return [
        GroupUse(tuple(found), int(used), int(amount_nanousd))
        for *found, used, amount_nanousd in connection.execute(query)
    ]
