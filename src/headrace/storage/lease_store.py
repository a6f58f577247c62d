"""Shared limits in the database: leases of slices, one transaction an exchange."""

import secrets
from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import Connection, delete, func, insert, select

from headrace.base.clock import Clock
from headrace.base.errors import Conflict
from headrace.storage.lease_exchange import (
    Answer,
    Answers,
    Ask,
    Exchange,
    LimitKind,
    Standing,
    grant,
    lease_lifetime_s,
    marker_window,
)
from headrace.storage.posting import ids_per_query
from headrace.storage.rows import dialect_insert
from headrace.storage.sessions import Sessions
from headrace.storage.store_time import store_time_s
from headrace.storage.tables import accounts, counters, limit_gateways, limit_leases, limit_uses

epoch_counter = "limits_epoch"
marked_counter = "limits_redis_marked"
epoch_bits = 62

Uses = dict[str, dict[int, int]]  # amounts by key and window


def too_late(gateway_id: str) -> Conflict:
    """A question that was overtaken by a newer one of the same gateway."""
    return Conflict(
        f"the gateway {gateway_id} has asked something newer; is its journal used twice?"
    )


class LeaseStore:
    """`SharedLimits` over SQL. Exchanges take turns, apart from every other writer's."""

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock

    def begin(self, gateway_id: str) -> Standing:
        """As `SharedLimits.begin`."""
        with self._sessions.read() as connection:
            known = connection.execute(
                select(limit_gateways).where(limit_gateways.c.gateway_id == gateway_id)
            ).one_or_none()
            leases = connection.execute(
                select(limit_leases.c.limit_key, limit_leases.c.amount).where(
                    limit_leases.c.gateway_id == gateway_id
                )
            ).all()
            time_s = store_time_s(connection, self._clock)
        if known is None:
            return Standing(time_s)
        return Standing(
            time_s,
            known.operation,
            known.report,
            known.sequence,
            {row.limit_key: row.amount for row in leases},
        )

    def exchange(self, said: Exchange) -> Answers:
        """As `SharedLimits.exchange`."""
        with self._sessions.write() as connection:
            time_s = store_time_s(connection, self._clock)
            is_new_report = self._register(connection, said, time_s)
            keys = sorted({ask.key for ask in said.asks} | {use.key for use in said.uses})
            uses = read_uses(connection, keys)
            changed: Uses = defaultdict(dict)
            if is_new_report:
                for use in said.uses:
                    add_use(uses, changed, use.key, use.window, use.amount)
            answers = self._grant_all(connection, said, uses, changed, time_s)
            write_uses(connection, changed, uses, said.asks)
            write_leases(connection, said.gateway_id, answers)
        return Answers(time_s, tuple(answers))

    def redis_epoch(self) -> tuple[int, bool]:
        """What this platform's Redis is marked with, and whether one was marked already."""
        with self._sessions.write() as connection:
            known = {
                row.name: row.value
                for row in connection.execute(
                    select(counters).where(counters.c.name.in_((epoch_counter, marked_counter)))
                )
            }
            if epoch_counter not in known:
                known[epoch_counter] = secrets.randbits(epoch_bits)
                connection.execute(
                    insert(counters).values(name=epoch_counter, value=known[epoch_counter])
                )
        return known[epoch_counter], marked_counter in known

    def note_redis(self) -> None:
        """Remember that the platform's Redis is marked, so that an empty one has lost something."""
        with self._sessions.write() as connection:
            statement = dialect_insert(connection, counters)
            connection.execute(
                statement.on_conflict_do_nothing(), [{"name": marked_counter, "value": 1}]
            )

    def close(self) -> None:
        """The database belongs to the caller."""

    def _grant_all(
        self, connection: Connection, said: Exchange, uses: Uses, changed: Uses, time_s: float
    ) -> list[Answer]:
        others = read_leases(connection, said, time_s)
        balances = read_balances(connection, said.asks)
        answers: list[Answer] = []
        for ask in said.asks:
            known = uses[ask.key]
            needs_base = not ask.expires and ask.kind <= LimitKind.ROLLING
            if needs_base and marker_window not in known:
                if not ask.has_base:
                    answers.append(Answer(ask.key, ask.committed, 0, 0, 0, is_new=True))
                    continue
                for window, amount in (*ask.base, (marker_window, 0)):
                    add_use(uses, changed, ask.key, window, amount)
            capacity = ask.capacity + balances.get(ask.tenant_id, 0)
            mine = others[ask.expires].get(ask.key, 0)
            answers.append(grant(ask, capacity, known.items(), mine))
        return answers

    def _register(self, connection: Connection, said: Exchange, time_s: float) -> bool:
        """Note the gateway's numbers; whether its report is a new one."""
        known = connection.execute(
            select(limit_gateways).where(limit_gateways.c.gateway_id == said.gateway_id)
        ).one_or_none()
        if known is not None and said.operation <= known.operation:
            raise too_late(said.gateway_id)
        row = {
            "gateway_id": said.gateway_id,
            "operation": said.operation,
            "report": said.report,
            "sequence": said.sequence,
            "seen_time": time_s,
        }
        statement = dialect_insert(connection, limit_gateways)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[limit_gateways.c.gateway_id],
                set_={name: statement.excluded[name] for name in row if name != "gateway_id"},
            ),
            [row],
        )
        return known is None or said.report > known.report


def add_use(uses: Uses, changed: Uses, key: str, window: int, amount: int) -> None:
    """Add to a window, and note that it changed."""
    uses[key][window] = changed[key][window] = uses[key].get(window, 0) + amount


def read_uses(connection: Connection, keys: list[str]) -> Uses:
    """The uses of limits."""
    uses: Uses = defaultdict(dict)
    for start in range(0, len(keys), ids_per_query):
        some = keys[start : start + ids_per_query]
        query = select(limit_uses).where(limit_uses.c.limit_key.in_(some))
        for row in connection.execute(query):
            uses[row.limit_key][row.window_number] = row.amount
    return uses


def read_leases(
    connection: Connection, said: Exchange, time_s: float
) -> Mapping[bool, dict[str, int]]:
    """What other gateways lease of the asked limits: all of them, and those that were heard of."""
    sums: dict[bool, dict[str, int]] = {False: defaultdict(int), True: defaultdict(int)}
    keys = [ask.key for ask in said.asks]
    for start in range(0, len(keys), ids_per_query):
        some = keys[start : start + ids_per_query]
        query = (
            select(limit_leases.c.limit_key, limit_leases.c.amount, limit_gateways.c.seen_time)
            .join(limit_gateways, limit_gateways.c.gateway_id == limit_leases.c.gateway_id)
            .where(limit_leases.c.limit_key.in_(some), limit_leases.c.gateway_id != said.gateway_id)
        )
        for row in connection.execute(query):
            sums[False][row.limit_key] += row.amount
            if row.seen_time > time_s - lease_lifetime_s:
                sums[True][row.limit_key] += row.amount
    return sums


def read_balances(connection: Connection, asks: tuple[Ask, ...]) -> dict[str, int]:
    """The balances of the tenants whose credit is asked for."""
    tenants = sorted({ask.tenant_id for ask in asks if ask.kind is LimitKind.CREDIT})
    if not tenants:
        return {}
    query = (
        select(
            accounts.c.tenant_id,
            func.sum(accounts.c.credits_nanousd - accounts.c.debits_nanousd).label("balance"),
        )
        .where(accounts.c.tenant_id.in_(tenants))
        .group_by(accounts.c.tenant_id)
    )
    return {row.tenant_id: int(row.balance) for row in connection.execute(query)}


def write_uses(connection: Connection, changed: Uses, uses: Uses, asks: tuple[Ask, ...]) -> None:
    """Keep what changed, and forget the windows that count for nobody any more."""
    rows = [
        {"limit_key": key, "window_number": window, "amount": amount}
        for key, windows in sorted(changed.items())
        for window, amount in sorted(windows.items())
    ]
    if rows:
        statement = dialect_insert(connection, limit_uses)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(limit_uses.primary_key.columns),
                set_={"amount": statement.excluded.amount},
            ),
            rows,
        )
    for ask in asks:
        if any(marker_window < window < ask.kept_since for window in uses[ask.key]):
            connection.execute(
                delete(limit_uses).where(
                    limit_uses.c.limit_key == ask.key,
                    limit_uses.c.window_number > marker_window,
                    limit_uses.c.window_number < ask.kept_since,
                )
            )


def write_leases(connection: Connection, gateway_id: str, answers: list[Answer]) -> None:
    """Keep the leases of a gateway; none takes no row."""
    rows = [
        {"limit_key": answer.key, "gateway_id": gateway_id, "amount": answer.lease}
        for answer in sorted(answers, key=lambda answer: answer.key)
    ]
    kept = [row for row in rows if row["amount"]]
    gone = [answer.key for answer in answers if not answer.lease]
    if kept:
        statement = dialect_insert(connection, limit_leases)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(limit_leases.primary_key.columns),
                set_={"amount": statement.excluded.amount},
            ),
            kept,
        )
    for start in range(0, len(gone), ids_per_query):
        connection.execute(
            delete(limit_leases).where(
                limit_leases.c.gateway_id == gateway_id,
                limit_leases.c.limit_key.in_(gone[start : start + ids_per_query]),
            )
        )
