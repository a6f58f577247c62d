"""One charge an `Idempotency-Key`: which of its answers the caller pays, decided when it is booked.

    gateway A   claims the key, answers, settles, dies before its journal is shipped
    gateway B   takes the key over when A's claim runs out, answers, settles, ships: charged
    gateway A   comes back and ships: its answer is booked at the platform's expense

Two uses of one key are the same if neither began later than the other's window ended, whatever
the order in which they are booked. Writers of the ledger take turns, so nobody decides meanwhile.
"""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from headrace.spec.settlements import KeyUse, Outcome, Settlement
from headrace.storage.rows import insert_many
from headrace.storage.tables import charged_keys

key_window_s = 600.0  # from an answer to when its key may ask anew
kept_s = 7 * 86_400.0  # a journal that comes later than this may charge a second time
digests_per_query = 500  # under the smallest limit of bound parameters


def charged_once(connection: Connection, fresh: Sequence[Settlement]) -> list[Settlement]:
    """The same settlements; those whose key another one is charged for, at the platform's expense.

    Only whole answers count: what a client broke off is charged beside them."""
    uses = [(record, record.key_use) for record in fresh if record.key_use and pays(record)]
    if not uses:  # nearly always
        return list(fresh)
    charged = charged_among(connection, {use.digest for _, use in uses})
    borne: set[str] = set()
    written: list[dict[str, object]] = []
    for record, use in uses:
        known = charged[use.digest]
        if any(is_same_use(each, use, record.settle_time) for each in known):
            borne.add(record.request_id)
        else:
            known.append((use.begin_time, record.settle_time))
            written.append(row_of(record, use))
    keep(connection, written)
    return [record.borne() if record.request_id in borne else record for record in fresh]


def pays(record: Settlement) -> bool:
    """Whether its caller is to pay for a whole answer."""
    return record.outcome is Outcome.FINISHED and not record.is_borne


def is_same_use(known: tuple[float, float], use: KeyUse, settle_time: float) -> bool:
    """Whether two answers were given to one use of a key; `known` began and was settled then."""
    begin_time, known_settle_time = known
    return (
        use.begin_time <= known_settle_time + key_window_s
        and begin_time <= settle_time + key_window_s
    )


def charged_among(
    connection: Connection, digests: set[str]
) -> defaultdict[str, list[tuple[float, float]]]:
    """When the charged uses of each key began and were settled."""
    columns = charged_keys.c
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    ordered = sorted(digests)
    for start in range(0, len(ordered), digests_per_query):
        some = ordered[start : start + digests_per_query]
        query = select(columns.digest, columns.begin_time, columns.settle_time).where(
            columns.digest.in_(some)
        )
        for row in connection.execute(query):
            found[row.digest].append((row.begin_time, row.settle_time))
    return found


def row_of(record: Settlement, use: KeyUse) -> dict[str, object]:
    """The columns of a charged use."""
    return {
        "digest": use.digest,
        "request_id": record.request_id,
        "begin_time": use.begin_time,
        "settle_time": record.settle_time,
    }


def keep(connection: Connection, rows: Sequence[dict[str, object]]) -> None:
    """Remember who is charged, and forget what is too old to meet another."""
    if not rows:
        return
    insert_many(connection, charged_keys, rows)
    newest = max(float(str(row["settle_time"])) for row in rows)
    connection.execute(delete(charged_keys).where(charged_keys.c.settle_time < newest - kept_s))
