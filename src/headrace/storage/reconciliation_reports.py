"""The hourly comparisons of what engines counted with what was billed, as they were made."""

import msgspec
from sqlalchemy import delete, func, select

from headrace.storage.rows import dialect_insert
from headrace.storage.sessions import Sessions
from headrace.storage.tables import reconciliation_reports


class StoredReport(msgspec.Struct, frozen=True, kw_only=True):
    """One hour; whoever made it knows what is in the body."""

    begin_time: float
    end_time: float
    make_time: float
    difference_tokens: int
    unexplained_tokens: int
    body: bytes = b""  # left out of lists


_heads = [column for column in reconciliation_reports.c if column.name != "body"]


class ReconciliationReports:
    """The reports at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def keep(self, report: StoredReport, *, forget_before: float) -> None:
        """Keep a report, in place of an earlier one of its hour; forget those that began before."""
        table = reconciliation_reports
        with self._sessions.write() as connection:
            statement = dialect_insert(connection, table)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=[table.c.begin_time],
                    set_={column.name: statement.excluded[column.name] for column in table.c},
                ),
                [msgspec.structs.asdict(report)],
            )
            connection.execute(delete(table).where(table.c.begin_time < forget_before))

    def newest(self, limit: int) -> list[StoredReport]:
        """The heads of the newest reports, the newest first."""
        query = select(*_heads).order_by(reconciliation_reports.c.begin_time.desc()).limit(limit)
        with self._sessions.read() as connection:
            return [StoredReport(**row._mapping) for row in connection.execute(query)]

    def covering(self, moment: float) -> StoredReport | None:
        """The report of the hour that a moment is in, whole."""
        columns = reconciliation_reports.c
        query = select(reconciliation_reports).where(
            columns.begin_time <= moment, columns.end_time > moment
        )
        with self._sessions.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else StoredReport(**row._mapping)

    def last_end(self) -> float | None:
        """Until when there are reports; None: there is none."""
        query = select(func.max(reconciliation_reports.c.end_time))
        with self._sessions.read() as connection:
            found: float | None = connection.execute(query).scalar_one()
        return found
