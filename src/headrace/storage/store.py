"""Resources at rest: created once, replaced by version, found by name, polled by revision."""

import builtins
from typing import TypeVar, cast

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from headrace.base.errors import Conflict, InvalidRequest, NotFound
from headrace.spec.resource import Resource
from headrace.storage.changes import notify
from headrace.storage.sessions import Sessions
from headrace.storage.tables import counters, resources

name_length_max = 255
revision_query = select(counters.c.value).where(counters.c.name == "revision")  # asked most

R = TypeVar("R", bound=Resource)


def no_resource(kind: str, resource_id: str) -> NotFound:
    """The error for an id that nothing of that kind has."""
    return NotFound(f"there is no {kind} {resource_id}", kind=kind, id=resource_id)


class Store:
    """The desired and observed state of the platform; synchronous, safe from any thread.

    A kind is named by its class: `store.list(Deployment)`. Async callers go through
    `asyncio.to_thread`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def create(self, resource: R) -> R:
        """Keep a new resource and return it at version 1; Conflict if its id or name is taken."""
        created = msgspec.structs.replace(resource, version=1)
        with self._sessions.write() as connection:
            row = {"id": created.id, "kind": created.kind, **self._row(connection, created)}
            try:
                connection.execute(insert(resources).values(row))
            except IntegrityError:
                raise self._name_taken(created) from None
        return created

    def update(self, resource: R) -> R:
        """Replace a resource and return it at the next version.

        Conflict if it changed since `resource.version` was read, or if its new name is taken;
        NotFound if it is gone."""
        changed = msgspec.structs.replace(resource, version=resource.version + 1)
        with self._sessions.write() as connection:
            try:
                result = connection.execute(
                    update(resources)
                    .where(self._this(resource))
                    .values(self._row(connection, changed))
                )
            except IntegrityError:
                raise self._name_taken(changed) from None
            if result.rowcount == 0:
                raise self._stale(connection, resource)
        return changed

    def delete(self, resource: Resource) -> None:
        """Forget a resource; Conflict if it changed since it was read, NotFound if it is gone."""
        with self._sessions.write() as connection:
            self._next_revision(connection)
            if connection.execute(delete(resources).where(self._this(resource))).rowcount == 0:
                raise self._stale(connection, resource)

    def get(self, kind: type[R], resource_id: str) -> R:
        """The resource of that id; NotFound if there is none of that kind."""
        found = self._select(kind, resources.c.id == resource_id)
        if not found:
            raise no_resource(kind.kind, resource_id)
        return found[0]

    def find(self, kind: type[R], name: str, parent_id: str = "") -> R | None:
        """The resource of that name under that parent, or None."""
        found = self._select(
            kind, and_(resources.c.name == name, resources.c.parent_id == parent_id)
        )
        return found[0] if found else None

    def list(self, kind: type[R], parent_id: str | None = None) -> builtins.list[R]:
        """Every resource of a kind in the order of creation; `None`: whatever its parent."""
        if parent_id is None:
            return self._select(kind)
        return self._select(kind, resources.c.parent_id == parent_id)

    def page(
        self, kind: type[R], parent_id: str | None = None, *, after: str, limit: int | None
    ) -> builtins.list[R]:
        """The first `limit` of what `list` gives after the id `after`, `None`: all of that; the
        others are not read."""
        conditions = [resources.c.id > after]
        if parent_id is not None:
            conditions.append(resources.c.parent_id == parent_id)
        return self._select(kind, *conditions, limit=limit)

    def revision(self) -> int:
        """A number that grows with every committed change, by any process; one row is read."""
        with self._sessions.read() as connection:
            return cast(int, connection.execute(revision_query).scalar_one())

    def _select(
        self, kind: type[R], *conditions: ColumnElement[bool], limit: int | None = None
    ) -> builtins.list[R]:
        query = (
            select(resources.c.body)
            .where(resources.c.kind == kind.kind, *conditions)
            .order_by(resources.c.id)
            .limit(limit)
        )
        with self._sessions.read() as connection:
            bodies = connection.execute(query).scalars().all()
        return [msgspec.json.decode(body, type=kind) for body in bodies]

    def _row(self, connection: Connection, resource: Resource) -> dict[str, object]:
        """The columns that a change writes."""
        if not 0 < len(resource.name) <= name_length_max:
            raise InvalidRequest(f"a name has 1 to {name_length_max} characters", param="name")
        return {
            "parent_id": resource.parent_id,
            "name": resource.name,
            "version": resource.version,
            "revision": self._next_revision(connection),
            "body": msgspec.json.encode(resource),
        }

    @staticmethod
    def _next_revision(connection: Connection) -> int:
        notify(connection)
        return cast(
            int,
            connection.execute(
                update(counters)
                .where(counters.c.name == "revision")
                .values(value=counters.c.value + 1)
                .returning(counters.c.value)
            ).scalar_one(),
        )

    @staticmethod
    def _this(resource: Resource) -> ColumnElement[bool]:
        return and_(
            resources.c.id == resource.id,
            resources.c.kind == resource.kind,
            resources.c.version == resource.version,
        )

    @staticmethod
    def _name_taken(resource: Resource) -> Conflict:
        return Conflict(
            f"a {resource.kind.replace('_', ' ')} named {resource.name!r} exists already; "
            "choose another name",
            kind=resource.kind,
            name=resource.name,
        )

    @staticmethod
    def _stale(connection: Connection, resource: Resource) -> Conflict | NotFound:
        """Why no row of that id and version was there."""
        version = connection.execute(
            select(resources.c.version).where(
                resources.c.id == resource.id, resources.c.kind == resource.kind
            )
        ).scalar_one_or_none()
        if version is None:
            return no_resource(resource.kind, resource.id)
        return Conflict(
            f"the {resource.kind} {resource.name!r} changed meanwhile (version {version}, not "
            f"{resource.version}); read it again and repeat the change",
            kind=resource.kind,
            id=resource.id,
            version=version,
        )
