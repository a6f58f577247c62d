"""The ledger at rest: an append-only double-entry book, and usage derived from it.

    credit of a tenant    debit platform:funding    credit tenant:<id>
    settlement            debit tenant:<id>         credit platform:revenue
    the same, borne       debit platform:borne      credit platform:revenue
    unrated settlement    an entry without postings, until a price is known

A tenant's balance is the credits less the debits of its account: what it may still spend.
Everything of one batch is committed together: entries, postings, the accounts' totals, the daily
sums and the cursor of the journal that it came from. So nothing counts twice, and a reader always
knows which journal records a balance contains.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import func, insert, select, tuple_

from headrace.base.clock import Clock
from headrace.base.errors import Conflict, InvalidRequest
from headrace.base.money import format_usd, nanousd_per_usd
from headrace.spec.settlements import Settlement
from headrace.storage import posting
from headrace.storage.charged_keys import charged_once
from headrace.storage.invariants import broken_invariants
from headrace.storage.sessions import Sessions
from headrace.storage.tables import accounts, entries, journal_cursors, postings, settlements
from headrace.storage.usage import GroupUse, UsageDimension, UsageRow, read_usage, read_uses, spent

credit_nanousd_max = 10_000_000 * nanousd_per_usd  # far from where 64-bit totals end
reason_length_max = 255
entry_id_length_max = 100


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """Balances, and how much of each journal they contain."""

    balances_nanousd: dict[str, int]  # by tenant id; a tenant without entries is missing
    sequences: dict[str, int]  # by journal id: records up to here are in the balances
    # All that each tenant was ever credited and debited; only ever more, so that readers agree
    # which of two is newer.
    totals_nanousd: dict[str, tuple[int, int]] = {}


class CreditEntry(msgspec.Struct, frozen=True):
    """What changed a tenant's balance beside its requests."""

    id: str
    reason: str
    amount_nanousd: int  # negative: taken back
    post_time: float


class LedgerStore:
    """Money and usage; synchronous, safe from any thread. Async callers use a thread."""

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock

    def post(
        self,
        records: Sequence[Settlement],
        *,
        journal_id: str | None = None,
        sequence: int | None = None,
    ) -> int:
        """Book settlements and return how many were new; a request id is booked once for ever,
        and a key's answer is charged once (`charged_keys`).

        `sequence` is the last record of `journal_id` that this batch covers; it moves the
        journal's cursor in the same transaction. Commits all of the batch or nothing."""
        with self._sessions.write() as connection:
            fresh = posting.without_booked(connection, records)
            if fresh:
                posting.book_settlements(connection, charged_once(connection, fresh))
            if journal_id is not None and sequence is not None:
                posting.move_cursor(connection, journal_id, sequence)
        return len(fresh)

    def credit(self, tenant_id: str, amount_nanousd: int, entry_id: str, reason: str) -> bool:
        """Add credit to a tenant (take it back if negative); False if `entry_id` is booked.

        Conflict if that entry was booked with another tenant or amount."""
        check_credit(amount_nanousd, entry_id, reason)
        lines = posting.credit_lines(f"credit:{entry_id}", tenant_id, amount_nanousd)
        with self._sessions.write() as connection:
            booked = posting.lines_of(connection, lines[0].entry_id)
            if booked:
                if booked != lines:
                    raise Conflict(
                        f"the entry {entry_id} was booked with another tenant or amount; choose "
                        "another entry id",
                        param="entry_id",
                    )
                return False
            connection.execute(
                insert(entries).values(
                    id=lines[0].entry_id,
                    kind="credit",
                    reason=reason,
                    post_time=self._clock.wall_s(),
                )
            )
            posting.book_lines(connection, lines)
        return True

    def credits(
        self, tenant_id: str, *, before: tuple[float, str] | None = None, limit: int
    ) -> list[CreditEntry]:
        """A tenant's entries other than settlements, the newest first, after the one of this time
        and id."""
        amount = postings.c.credit_nanousd - postings.c.debit_nanousd
        query = (
            select(entries.c.id, entries.c.reason, amount.label("amount"), entries.c.post_time)
            .select_from(entries.join(postings, postings.c.entry_id == entries.c.id))
            .where(
                entries.c.kind != "settlement",
                postings.c.account_id == posting.tenant_account(tenant_id),
            )
            .order_by(entries.c.post_time.desc(), entries.c.id.desc())
            .limit(limit)
        )
        if before is not None:
            query = query.where(tuple_(entries.c.post_time, entries.c.id) < before)
        with self._sessions.read() as connection:
            return [CreditEntry(*row) for row in connection.execute(query)]

    def balances(self) -> dict[str, int]:
        """What each tenant may still spend, in nano-dollars, by tenant id."""
        return self.snapshot().balances_nanousd

    def snapshot(self) -> LedgerSnapshot:
        """Balances and journal cursors of one moment."""
        with self._sessions.read() as connection:
            balances = connection.execute(
                select(
                    accounts.c.tenant_id,
                    accounts.c.credits_nanousd,
                    accounts.c.debits_nanousd,
                ).where(accounts.c.tenant_id.is_not(None))
            ).all()
            cursors = connection.execute(
                select(journal_cursors.c.journal_id, journal_cursors.c.sequence)
            ).all()
        return LedgerSnapshot(
            {row.tenant_id: row.credits_nanousd - row.debits_nanousd for row in balances},
            {row.journal_id: row.sequence for row in cursors},
            {row.tenant_id: (row.credits_nanousd, row.debits_nanousd) for row in balances},
        )

    def position(self) -> tuple[int, int, int]:
        """Another one after each booking: credits and debits of all tenants, records of journals.

        None of the three ever shrinks. Cost: two sums over a row a tenant and a row a journal."""
        totals = select(
            func.coalesce(func.sum(accounts.c.credits_nanousd), 0),
            func.coalesce(func.sum(accounts.c.debits_nanousd), 0),
        ).where(accounts.c.tenant_id.is_not(None))
        records = select(func.coalesce(func.sum(journal_cursors.c.sequence), 0))
        with self._sessions.read() as connection:
            credited, debited = connection.execute(totals).one()
            return int(credited), int(debited), int(connection.execute(records).scalar_one())

    def usage(
        self,
        group_by: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> list[UsageRow]:
        """Sums of settlements in `[since, until)` (seconds since the epoch) by group.

        Groups and filters are `tenant`, `project`, `key`, `model` and `day`; a filter's value is
        an id, a model's name or a day as YYYY-MM-DD. Cost: whole UTC days read a row a group and
        day, other ranges a row a settlement."""
        groups = tuple(UsageDimension.parse(name) for name in group_by)
        wanted = {UsageDimension.parse(name): value for name, value in (filters or {}).items()}
        with self._sessions.read() as connection:
            return read_usage(connection, groups, since, until, wanted)

    def uses(
        self, group_by: Sequence[str], since: float, ids: Collection[str] | None = None
    ) -> list[GroupUse]:
        """What groups used since then; those of other `ids` of the first dimension may be left out.

        Cost: as of `usage`, with fewer sums."""
        groups = tuple(UsageDimension.parse(name) for name in group_by)
        with self._sessions.read() as connection:
            return read_uses(connection, groups, since, ids)

    def spent(self, tenant_id: str, since: float, until: float) -> int:
        """Nano-dollars that a tenant was charged in `[since, until)`, seconds since the epoch."""
        with self._sessions.read() as connection:
            return spent(connection, tenant_id, since, until)

    def settlement_count(self) -> int:
        """How many requests are booked."""
        with self._sessions.read() as connection:
            return connection.execute(select(func.count()).select_from(settlements)).scalar_one()

    def check(self) -> list[str]:
        """Every broken invariant in words; empty when the book is sound. Reads everything."""
        with self._sessions.read() as connection:
            if connection.dialect.name == "postgresql":
                # Reads everything, which takes longer than a question of a request may.
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            return broken_invariants(connection)


def check_credit(amount_nanousd: int, entry_id: str, reason: str) -> None:
    """Refuse credits that cannot be meant or cannot be kept."""
    if amount_nanousd == 0:
        raise InvalidRequest("a credit of 0 changes nothing", param="amount_nanousd")
    if abs(amount_nanousd) > credit_nanousd_max:
        raise InvalidRequest(
            f"one credit is at most ${format_usd(credit_nanousd_max)}; split it",
            param="amount_nanousd",
        )
    if not 0 < len(entry_id) <= entry_id_length_max:
        raise InvalidRequest(
            f"an entry id has 1 to {entry_id_length_max} characters", param="entry_id"
        )
    if len(reason) > reason_length_max:
        raise InvalidRequest(f"a reason has at most {reason_length_max} characters", param="reason")
