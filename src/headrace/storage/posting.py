"""How settlements become rows: entries, postings, totals and daily sums, a batch at a time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from headrace.spec.settlements import Charge, Outcome, Settlement, summed_outcomes
from headrace.storage.rows import add_many, dialect_insert, insert_many
from headrace.storage.tables import (
    accounts,
    entries,
    journal_cursors,
    postings,
    settlements,
    usage_daily,
)
from headrace.storage.usage import class_names, day_of, sum_names, unit_sum_names

funding_account = "platform:funding"
revenue_account = "platform:revenue"
borne_account = "platform:borne"  # what was sold and nobody pays: the other side of its revenue
ids_per_query = 500  # under the smallest limit of bound parameters, SQLite's old 999


class Line(NamedTuple):
    """One posting; exactly one side is set, unless the amount is 0."""

    entry_id: str
    line: int
    account_id: str
    debit_nanousd: int
    credit_nanousd: int


def tenant_account(tenant_id: str) -> str:
    """The account of a tenant's credit."""
    return f"tenant:{tenant_id}"


def transfer(entry_id: str, debited: str, credited: str, amount_nanousd: int) -> list[Line]:
    """The two lines that move an amount of at least 0."""
    return [
        Line(entry_id, 0, debited, amount_nanousd, 0),
        Line(entry_id, 1, credited, 0, amount_nanousd),
    ]


def credit_lines(entry_id: str, tenant_id: str, amount_nanousd: int) -> list[Line]:
    """The lines of a credit, or of taking it back where negative."""
    account = tenant_account(tenant_id)
    if amount_nanousd < 0:
        return transfer(entry_id, account, funding_account, -amount_nanousd)
    return transfer(entry_id, funding_account, account, amount_nanousd)


def lines_of(connection: Connection, entry_id: str) -> list[Line]:
    """The lines of a booked entry; empty if there is none."""
    query = (
        select(*(postings.c[name] for name in Line._fields))
        .where(postings.c.entry_id == entry_id)
        .order_by(postings.c.line)
    )
    return [Line(*row) for row in connection.execute(query)]


def without_booked(connection: Connection, records: Iterable[Settlement]) -> list[Settlement]:
    """The settlements that are not booked yet, each request once; the first of two counts."""
    fresh: dict[str, Settlement] = {}
    for record in records:
        fresh.setdefault(record.request_id, record)
    ids = list(fresh)
    for start in range(0, len(ids), ids_per_query):
        some = ids[start : start + ids_per_query]
        query = select(settlements.c.request_id).where(settlements.c.request_id.in_(some))
        for request_id in connection.execute(query).scalars():
            del fresh[request_id]
    return list(fresh.values())


def book_settlements(connection: Connection, fresh: Sequence[Settlement]) -> None:
    """Write settlements that are known to be new, and everything that is derived from them."""
    insert_many(
        connection,
        entries,
        [
            {
                "id": record.request_id,
                "kind": "settlement",
                "reason": reason_of(record),
                "post_time": record.settle_time,
            }
            for record in fresh
        ],
    )
    insert_many(connection, settlements, [settlement_row(record) for record in fresh])
    lines = [
        line
        for record in fresh
        if record.charge is not None
        for line in charge_lines(
            record.request_id, record.tenant_id, record.charge, is_borne=record.is_borne
        )
    ]
    if lines:
        book_lines(connection, lines)
    add_daily(connection, fresh)


def reason_of(record: Settlement) -> str:
    """Why an entry is there, and why nobody pays it where that is so."""
    if not record.is_borne:
        return record.outcome.value
    why = "another answer is charged" if record.outcome is Outcome.FINISHED else "broken off by us"
    return f"{record.outcome}, borne by the platform: {why}"


def charge_lines(entry_id: str, tenant_id: str, charge: Charge, *, is_borne: bool) -> list[Line]:
    """The lines of a charge: from its tenant, or from the platform itself."""
    if is_borne:
        return transfer(entry_id, borne_account, revenue_account, charge.waived_nanousd)
    return transfer(entry_id, tenant_account(tenant_id), revenue_account, charge.amount_nanousd)


def book_lines(connection: Connection, lines: Sequence[Line]) -> None:
    """Write postings and add them to their accounts' totals."""
    totals: dict[str, tuple[int, int]] = {}
    for line in lines:
        debits, credits_ = totals.get(line.account_id, (0, 0))
        totals[line.account_id] = (debits + line.debit_nanousd, credits_ + line.credit_nanousd)
    add_many(
        connection,
        accounts,
        [
            {
                "id": account_id,
                "tenant_id": tenant_of(account_id),
                "debits_nanousd": debits,
                "credits_nanousd": credits_,
            }
            # One order for every writer, so that two of them never wait for each other.
            for account_id, (debits, credits_) in sorted(totals.items())
        ],
        summed=("debits_nanousd", "credits_nanousd"),
    )
    insert_many(connection, postings, [line._asdict() for line in lines])


def tenant_of(account_id: str) -> str | None:
    """The tenant that an account belongs to, or None for the platform's own."""
    owner, _, name = account_id.partition(":")
    return name if owner == "tenant" else None


def settlement_row(record: Settlement) -> dict[str, object]:
    """The columns of a settlement."""
    charge = record.charge
    return {
        "request_id": record.request_id,
        "tenant_id": record.tenant_id,
        "project_id": record.project_id,
        "key_id": record.key_id,
        "model": record.model,
        "day": day_of(record.settle_time),
        "outcome": record.outcome.value,
        "source": record.source.value,
        "prompt_tokens": record.usage.prompt_tokens,
        "cached_tokens": record.usage.cached_tokens,
        "completion_tokens": record.usage.completion_tokens,
        "price_book_id": record.price_book_id,
        "input_nanousd": charge and charge.input_nanousd,
        "cached_input_nanousd": charge and charge.cached_input_nanousd,
        "output_nanousd": charge and charge.output_nanousd,
        "waived_nanousd": charge and charge.waived_nanousd,
        "amount_nanousd": record.amount_nanousd,
        "settle_time": record.settle_time,
        **{name: getattr(record.usage, name) for name in class_names},
        "reasoning_nanousd": charge and charge.reasoning_nanousd,
        "draft_nanousd": charge and charge.draft_nanousd,
        "embedding_nanousd": charge and charge.embedding_nanousd,
        "image_nanousd": charge and charge.image_nanousd,
        "unit_requests": record.units.requests,
        **{name: getattr(record.units, name) for name in unit_sum_names},
        "per_request_nanousd": charge and charge.per_request_nanousd,
        "per_image_nanousd": charge and charge.per_image_nanousd,
        "per_second_nanousd": charge and charge.per_second_nanousd,
        "per_character_nanousd": charge and charge.per_character_nanousd,
        "replica_id": record.replica_id,
        "is_borne": True if record.is_borne else None,
        "price_percent": None if record.price_percent == 100 else record.price_percent,
    }


def sums_of(record: Settlement) -> tuple[int, ...]:
    """What one settlement adds to the sums of its day, in the order of `sum_names`."""
    return (
        1,
        *(int(record.outcome is outcome) for outcome in summed_outcomes),
        int(record.charge is None),
        record.usage.prompt_tokens,
        record.usage.cached_tokens,
        record.usage.completion_tokens,
        record.amount_nanousd or 0,
        *(getattr(record.usage, name) or 0 for name in class_names),
        *(getattr(record.units, name) or 0 for name in unit_sum_names),
    )


def add_daily(connection: Connection, fresh: Iterable[Settlement]) -> None:
    """Add settlements to the sums of their days."""
    sums: dict[tuple[str, ...], tuple[int, ...]] = {}
    for record in fresh:
        key = (
            day_of(record.settle_time),
            record.tenant_id,
            record.project_id,
            record.key_id,
            record.model,
        )
        added = sums_of(record)
        before = sums.get(key)
        sums[key] = added if before is None else tuple(map(sum, zip(before, added, strict=True)))
    key_names = ("day", "tenant_id", "project_id", "key_id", "model")
    rows: list[dict[str, object]] = [
        {**dict(zip(key_names, key, strict=True)), **dict(zip(sum_names, values, strict=True))}
        for key, values in sorted(sums.items())
    ]
    add_many(connection, usage_daily, rows, summed=sum_names)


def move_cursor(connection: Connection, journal_id: str, sequence: int) -> None:
    """Remember how far a journal is booked; a cursor never goes back."""
    statement = dialect_insert(connection, journal_cursors)
    later = statement.excluded.sequence
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[journal_cursors.c.journal_id],
            set_={"sequence": later},
            where=journal_cursors.c.sequence < later,
        ),
        [{"journal_id": journal_id, "sequence": sequence}],
    )
