"""How far a credential reaches inside one tenant, and how a child's reach is cut to its parent's.

None is no bound: every project, every model, every endpoint. The intersection of two scopes allows
what both allow; so whatever a credential makes can do no more than it, however often that repeats.
"""

from typing import TypeVar

import msgspec

from headrace.spec.roles import Permission, tenant_wide_permissions

T = TypeVar("T")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What a credential may do in a tenant, and on what."""

    permissions: frozenset[Permission] = frozenset()
    projects: frozenset[str] | None = None  # ids
    models: frozenset[str] | None = None  # logical names
    endpoints: frozenset[str] | None = None  # `spec.endpoints` names

    def intersect(self, other: "Scope") -> "Scope":
        """What both allow."""
        return Scope(
            permissions=self.permissions & other.permissions,
            projects=narrower(self.projects, other.projects),
            models=narrower(self.models, other.models),
            endpoints=narrower(self.endpoints, other.endpoints),
        )

    def without_tenant_wide(self) -> "Scope":
        """The same, less what concerns all of a tenant if it ends at some of its projects."""
        if self.projects is None:
            return self
        return msgspec.structs.replace(self, permissions=self.permissions - tenant_wide_permissions)

    def within(self, other: "Scope") -> bool:
        """Whether `other` allows everything that this allows."""
        return self.intersect(other) == self

    def reaches_project(self, project_id: str) -> bool:
        """Whether a project is in it."""
        return self.projects is None or project_id in self.projects


def narrower(mine: frozenset[T] | None, theirs: frozenset[T] | None) -> frozenset[T] | None:
    """The values in both sets, where None is the set of everything."""
    if mine is None:
        return theirs
    return mine if theirs is None else mine & theirs
