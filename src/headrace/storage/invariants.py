"""What must hold in the ledger at any moment, asked of the rows themselves."""

from collections.abc import Iterator

from sqlalchemy import Connection, Select, and_, case, func, literal, or_, select

from headrace.storage.tables import accounts, entries, postings, settlements, usage_daily
from headrace.storage.usage import settlement_sums, sum_names

extra_classes = (  # NULL in the oldest rows
    "reasoning",
    "draft",
    "embedding",
    "image",
    "per_request",
    "per_image",
    "per_second",
    "per_character",
)
examples_max = 5  # of each kind of damage; one is enough to look at, thousands are not


def broken_invariants(connection: Connection) -> list[str]:
    """Every broken invariant in words, with up to `examples_max` examples."""
    return [
        problem
        for check in (unbalanced, unmatched_settlements, wrong_amounts, wrong_totals, wrong_days)
        for problem in check(connection)
    ]


def examples(connection: Connection, query: Select[tuple[str]], problem: str) -> Iterator[str]:
    """One line that names some of the rows that `query` finds."""
    found = connection.execute(query.limit(examples_max + 1)).scalars().all()
    if found:
        more = " and more" if len(found) > examples_max else ""
        yield f"{problem}: {', '.join(map(str, found[:examples_max]))}{more}"


def unbalanced(connection: Connection) -> Iterator[str]:
    """Debits equal credits, in each entry and so over all; no posting is negative."""
    debits, credits_ = postings.c.debit_nanousd, postings.c.credit_nanousd
    yield from examples(
        connection,
        select(postings.c.entry_id)
        .group_by(postings.c.entry_id)
        .having(func.sum(debits) != func.sum(credits_)),
        "entries whose debits differ from their credits",
    )
    yield from examples(
        connection,
        select(postings.c.entry_id).where(or_(debits < 0, credits_ < 0)),
        "entries with a negative posting",
    )


def unmatched_settlements(connection: Connection) -> Iterator[str]:
    """A settlement has one entry of its kind, and such an entry one settlement."""
    join = entries.outerjoin(settlements, entries.c.id == settlements.c.request_id)
    yield from examples(
        connection,
        select(entries.c.id)
        .select_from(join)
        .where(entries.c.kind == "settlement", settlements.c.request_id.is_(None)),
        "settlement entries without a settlement",
    )
    back = settlements.outerjoin(
        entries, and_(entries.c.id == settlements.c.request_id, entries.c.kind == "settlement")
    )
    yield from examples(
        connection,
        select(settlements.c.request_id).select_from(back).where(entries.c.id.is_(None)),
        "settlements without an entry",
    )


def wrong_amounts(connection: Connection) -> Iterator[str]:
    """The lines of a charge make its amount, and the amount is what was debited.

    The platform is debited what it bears, which is all that was waived."""
    columns = settlements.c
    yield from examples(
        connection,
        select(columns.request_id).where(
            columns.amount_nanousd
            != columns.input_nanousd
            + columns.cached_input_nanousd
            + columns.output_nanousd
            + sum(func.coalesce(columns[f"{name}_nanousd"], 0) for name in extra_classes)
            - columns.waived_nanousd
        ),
        "settlements whose lines do not make their amount",
    )
    owed = case((columns.is_borne, columns.waived_nanousd), else_=columns.amount_nanousd)
    debited = (
        select(func.sum(postings.c.debit_nanousd))
        .where(postings.c.entry_id == columns.request_id)
        .scalar_subquery()
    )
    yield from examples(
        connection,
        select(columns.request_id).where(owed.is_distinct_from(debited)),
        "settlements that were not posted at their amount",
    )
    yield from examples(
        connection,
        select(columns.request_id).where(columns.is_borne, columns.amount_nanousd != 0),
        "settlements that the platform bears and somebody pays",
    )
    owner = accounts.c.tenant_id
    yield from examples(
        connection,
        select(columns.request_id)
        .join(postings, postings.c.entry_id == columns.request_id)
        .join(accounts, accounts.c.id == postings.c.account_id)
        .where(columns.is_borne, owner.is_not(None)),
        "settlements that the platform bears and a tenant was debited",
    )


def wrong_totals(connection: Connection) -> Iterator[str]:
    """An account's totals are the sums of its postings."""
    sums = (
        select(
            postings.c.account_id,
            func.sum(postings.c.debit_nanousd).label("debits"),
            func.sum(postings.c.credit_nanousd).label("credits"),
        )
        .group_by(postings.c.account_id)
        .subquery()
    )
    yield from examples(
        connection,
        select(accounts.c.id)
        .select_from(accounts.outerjoin(sums, sums.c.account_id == accounts.c.id))
        .where(
            or_(
                accounts.c.debits_nanousd != func.coalesce(sums.c.debits, 0),
                accounts.c.credits_nanousd != func.coalesce(sums.c.credits, 0),
            )
        ),
        "accounts whose totals differ from their postings",
    )


def wrong_days(connection: Connection) -> Iterator[str]:
    """The sums of each day are the sums of its settlements, group by group."""
    names = ("day", "tenant_id", "project_id", "key_id", "model")
    exact = (
        select(*(settlements.c[name] for name in names), *settlement_sums())
        .group_by(*(settlements.c[name] for name in names))
        .subquery()
    )
    same_group = and_(*(exact.c[name] == usage_daily.c[name] for name in names))
    same_sums = and_(*(exact.c[name] == usage_daily.c[name] for name in sum_names))
    yield from examples(
        connection,
        select(usage_daily.c.day + literal(" ") + usage_daily.c.tenant_id)
        .select_from(usage_daily.outerjoin(exact, and_(same_group, same_sums)))
        .where(exact.c.day.is_(None)),
        "daily sums that differ from their settlements",
    )
    yield from examples(
        connection,
        select(exact.c.day + literal(" ") + exact.c.tenant_id)
        .select_from(exact.outerjoin(usage_daily, same_group))
        .where(usage_daily.c.day.is_(None)),
        "settlements that are missing in the daily sums",
    )
