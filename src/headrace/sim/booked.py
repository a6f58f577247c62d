"""What a ledger has in the end, and which limits it says were exceeded."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from headrace.spec.limits import Limits
from headrace.storage import Database
from headrace.storage.tables import settlements


@dataclass(frozen=True, slots=True)
class Booked:
    """A settlement in the ledger."""

    tokens: tuple[int, int]  # prompt and completion
    amount_nanousd: int
    source: str
    day: str
    outcome: str


def read_settlements(database: Database) -> dict[str, Booked]:
    """Every settlement by request id, which is unique there."""
    query = select(
        settlements.c.request_id,
        settlements.c.prompt_tokens,
        settlements.c.completion_tokens,
        settlements.c.amount_nanousd,
        settlements.c.source,
        settlements.c.day,
        settlements.c.outcome,
    )
    with database._sessions.read() as connection:
        return {
            row.request_id: Booked(
                (row.prompt_tokens, row.completion_tokens),
                row.amount_nanousd or 0,
                row.source,
                row.day,
                row.outcome,
            )
            for row in connection.execute(query)
        }


def overruns(limits: Limits, booked: Iterable[Booked]) -> list[str]:
    """The day limits that were exceeded."""
    tokens: Counter[str] = Counter()
    nanousd: Counter[str] = Counter()
    for row in booked:
        tokens[row.day] += sum(row.tokens)
        nanousd[row.day] += row.amount_nanousd
    return [
        f"overrun: {used[day]} of {limit} {name} on {day}"
        for name, used, limit in (
            ("tokens", tokens, limits.tokens_per_period),
            ("nano-dollars", nanousd, limits.budget_nanousd),
        )
        for day in used
        if limit is not None and used[day] > limit
    ]
