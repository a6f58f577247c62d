"""Prices after the fact: what waited for one is rated once; what was rated can be tried at others.

    rate     settlements without a price get one, are posted and counted in their day's sums
    read     settlements of a period, in order, for whoever computes what they would have cost

A page at a time, so that months of millions of requests need little memory and no long lock.
"""

from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import Connection, RowMapping, Select, and_, bindparam, or_, select, update

from headrace.spec.prices import PriceVersion
from headrace.spec.settlements import (
    Charge,
    Outcome,
    Settlement,
    TokenUsage,
    UnitCounts,
    UsageSource,
)
from headrace.storage.posting import book_lines, charge_lines
from headrace.storage.rows import add_many
from headrace.storage.sessions import Sessions
from headrace.storage.tables import settlements, usage_daily
from headrace.storage.usage import sum_names

page_rows = 5_000
token_fields = TokenUsage.__struct_fields__
charge_fields = Charge.__struct_fields__
daily_keys = ("day", "tenant_id", "project_id", "key_id", "model")

PriceOf = Callable[[str, str, float], PriceVersion | None]  # by tenant id, model and time
Rate = Callable[[PriceVersion, Settlement], Charge | None]  # None: the price asks for the unknown
Rated = tuple[RowMapping, PriceVersion, Charge]
Position = tuple[float, str]  # time and request id of the last row that was read
before_all: Position = (-1.0, "")


class LateRating:
    """Settlements and prices that came apart; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def rate(self, price_of: PriceOf, rate: Rate, since_s: float, until_s: float) -> int:
        """Rate what has no price in `[since_s, until_s)` and return how many got one.

        What `rate` answers None of stays unrated. Each page is its own transaction:
        what is stopped in the middle is gone on with."""
        rated = 0
        position = before_all
        while True:
            query = page_of(position, since_s, until_s).where(settlements.c.price_book_id.is_(None))
            with self._sessions.write() as connection:
                rows = connection.execute(query).mappings().all()
                rated += rate_rows(connection, rows, price_of, rate)
            if len(rows) < page_rows:
                return rated
            position = (rows[-1]["settle_time"], rows[-1]["request_id"])

    def read(
        self, since_s: float, until_s: float, tenant_id: str | None = None
    ) -> Iterator[Settlement]:
        """The settlements of `[since_s, until_s)`, of a tenant or of all, in order of time."""
        position = before_all
        while True:
            query = page_of(position, since_s, until_s)
            if tenant_id is not None:
                query = query.where(settlements.c.tenant_id == tenant_id)
            with self._sessions.read() as connection:
                rows = connection.execute(query).mappings().all()
            yield from map(settlement_of, rows)
            if len(rows) < page_rows:
                return
            position = (rows[-1]["settle_time"], rows[-1]["request_id"])


def page_of(position: Position, since_s: float, until_s: float) -> Select[tuple[object, ...]]:
    """The next settlements after a position."""
    time_s, request_id = position
    columns = settlements.c
    return (
        select(settlements)
        .where(
            columns.settle_time >= max(since_s, time_s),
            columns.settle_time < until_s,
            or_(
                columns.settle_time > time_s,
                and_(columns.settle_time == time_s, columns.request_id > request_id),
            ),
        )
        .order_by(columns.settle_time, columns.request_id)
        .limit(page_rows)
    )


def usage_of(row: RowMapping) -> TokenUsage:
    """The tokens of a settlement's row."""
    return TokenUsage(**{name: row[name] for name in token_fields})


def units_of(row: RowMapping) -> UnitCounts:
    """The units of a settlement's row; in the oldest rows nobody counted any."""
    requests = row["unit_requests"]
    if requests is not None:
        return UnitCounts(requests, row["images"], row["audio_ms"], row["characters"])
    others = None if row["source"] == UsageSource.UNMETERED.value else 0
    return UnitCounts(int(row["outcome"] == Outcome.FINISHED.value), others, others, others)


def percent_of(row: RowMapping) -> int:
    """At which share of its price book's prices a settlement is rated."""
    return 100 if row["price_percent"] is None else int(row["price_percent"])


def settlement_of(row: RowMapping) -> Settlement:
    """A settlement from its row."""
    charge = None
    if row["price_book_id"] is not None:
        # The oldest rows have no columns for some classes.
        charge = Charge(**{name: row[name] or 0 for name in charge_fields})
    return Settlement(
        request_id=row["request_id"],
        tenant_id=row["tenant_id"],
        project_id=row["project_id"],
        key_id=row["key_id"],
        model=row["model"],
        usage=usage_of(row),
        outcome=Outcome(row["outcome"]),
        source=UsageSource(row["source"]),
        price_book_id=row["price_book_id"],
        charge=charge,
        settle_time=row["settle_time"],
        replica_id=row["replica_id"],
        price_percent=percent_of(row),
        units=units_of(row),
        is_borne=bool(row["is_borne"]),
    )


def rate_rows(
    connection: Connection, rows: Sequence[RowMapping], price_of: PriceOf, rate: Rate
) -> int:
    """Rate those of the rows whose model has a price now; their number."""
    found: list[Rated] = []
    for row in rows:
        version = price_of(row["tenant_id"], row["model"], row["settle_time"])
        if version is not None:
            shared = PriceVersion(version.price_book_id, version.price.shared(percent_of(row)))
            charge = rate(shared, settlement_of(row))
            if charge is not None:
                found.append((row, version, charge.borne() if row["is_borne"] else charge))
    if not found:
        return 0
    statement = (
        update(settlements)
        .where(settlements.c.request_id == bindparam("rated_id"))
        .values({name: bindparam(f"new_{name}") for name in rated_names})
    )
    connection.execute(statement, [rated_values(*each) for each in found])
    lines = [
        line
        for row, _, charge in found
        for line in charge_lines(
            row["request_id"], row["tenant_id"], charge, is_borne=bool(row["is_borne"])
        )
    ]
    book_lines(connection, lines)
    add_many(connection, usage_daily, daily_changes(found), summed=sum_names)
    return len(found)


rated_names = ("price_book_id", "amount_nanousd", *charge_fields)


def rated_values(row: RowMapping, version: PriceVersion, charge: Charge) -> dict[str, object]:
    """The columns that rating fills."""
    return {
        "rated_id": row["request_id"],
        "new_price_book_id": version.price_book_id,
        "new_amount_nanousd": charge.amount_nanousd,
        **{f"new_{name}": getattr(charge, name) for name in charge_fields},
    }


def daily_changes(
    found: Sequence[Rated],
) -> list[dict[str, object]]:
    """What rating changes in the sums of the days: fewer unrated requests, more money."""
    changes: dict[tuple[str, ...], tuple[int, int]] = {}
    for row, _, charge in found:
        key = tuple(row[name] for name in daily_keys)
        count, amount = changes.get(key, (0, 0))
        changes[key] = (count - 1, amount + charge.amount_nanousd)
    return [
        {
            **dict.fromkeys(sum_names, 0),
            **dict(zip(daily_keys, key, strict=True)),
            "unrated": count,
            "amount_nanousd": amount,
        }
        for key, (count, amount) in sorted(changes.items())
    ]
