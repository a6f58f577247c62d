"""Who asks: the bearer of the admin token, a person, or a service account, and how far they reach.

token            the platform's own admin token: an operator
user             a person with a session; an operator, or a member of tenants
service_account  a program of one tenant, with what it was given when it was made
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.spec.roles import Permission
from headrace.spec.scopes import Scope

ActorKind = Literal["token", "user", "service_account"]


@dataclass(frozen=True, slots=True)
class Actor:
    """One authenticated caller of the admin API."""

    kind: ActorKind
    id: str
    name: str
    is_operator: bool = False
    grants: Mapping[str, Scope] = field(default_factory=dict)  # by tenant id

    def may(self, permission: Permission, tenant_id: str) -> bool:
        """Whether the caller has a permission in a tenant."""
        if self.is_operator:
            return True
        scope = self.grants.get(tenant_id)
        return scope is not None and permission in scope.permissions

    def may_anywhere(self, permission: Permission | None) -> bool:
        """Whether there is a tenant where the caller has the permission; None: operators' alone."""
        if self.is_operator:
            return True
        return permission is not None and any(
            permission in scope.permissions for scope in self.grants.values()
        )

    def scope_in(self, tenant_id: str) -> Scope:
        """How far the caller reaches in a tenant; an operator, everywhere."""
        if self.is_operator:
            return Scope(permissions=frozenset(Permission))
        return self.grants.get(tenant_id, Scope())


token_actor = Actor(kind="token", id="admin-token", name="admin token", is_operator=True)
