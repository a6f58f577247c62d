"""What a replica of each deployment was found to bear: one row a deployment."""

from collections.abc import Collection

import msgspec
from sqlalchemy import delete, select

from headrace.storage.rows import dialect_insert
from headrace.storage.sessions import Sessions
from headrace.storage.tables import learnt_loads


class LearntLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a replica, learnt by the autoscaler."""

    deployment_id: str
    generation: int  # of the deployment, whose replicas bore it
    tokens_per_s: float
    too_much_tokens_per_s: float | None = None  # a load that was found too much
    cut_time: float | None = None  # when


class LearntLoads:
    """The loads at rest; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def keep(self, load: LearntLoad) -> None:
        """Keep a load in the place of what was known of its deployment."""
        table = learnt_loads
        with self._sessions.write() as connection:
            statement = dialect_insert(connection, table)
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=[table.c.deployment_id],
                    set_={column.name: statement.excluded[column.name] for column in table.c},
                ),
                [msgspec.structs.asdict(load)],
            )

    def find(self, deployment_id: str) -> LearntLoad | None:
        """What is known of a deployment."""
        query = select(learnt_loads).where(learnt_loads.c.deployment_id == deployment_id)
        with self._sessions.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else LearntLoad(**row._mapping)

    def keep_only(self, deployment_ids: Collection[str]) -> None:
        """Forget what belongs to deployments that are gone."""
        column = learnt_loads.c.deployment_id
        with self._sessions.read() as connection:
            known = connection.execute(select(column)).scalars().all()
        if gone := set(known).difference(deployment_ids):
            with self._sessions.write() as connection:
                connection.execute(delete(learnt_loads).where(column.in_(sorted(gone))))
