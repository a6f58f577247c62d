"""What people may do in a tenant: permissions, and the roles that bundle them.

    owner      everything in the tenant, also to name other owners
    admin      everything but that
    developer  projects are given, keys are made and revoked
    billing    what was used and what it costs, invoices, who is told of budgets
    viewer     sees, and changes nothing

A platform operator is above all tenants and has no role. A route that names no permission is for
operators alone.
"""

from collections.abc import Mapping
from enum import StrEnum


class Permission(StrEnum):
    """One thing that a route asks for."""

    TENANT_READ = "tenant.read"
    PROJECT_READ = "project.read"
    PROJECT_WRITE = "project.write"
    KEY_READ = "key.read"
    KEY_WRITE = "key.write"
    MEMBER_READ = "member.read"
    MEMBER_WRITE = "member.write"
    OWNER_WRITE = "owner.write"  # to make and unmake owners
    USAGE_READ = "usage.read"
    BILLING_READ = "billing.read"
    BILLING_WRITE = "billing.write"
    WEBHOOK_READ = "webhook.read"
    WEBHOOK_WRITE = "webhook.write"
    AUDIT_READ = "audit.read"


class Role(StrEnum):
    """A member's part in a tenant."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


_viewer = frozenset(
    {
        Permission.TENANT_READ,
        Permission.PROJECT_READ,
        Permission.KEY_READ,
        Permission.MEMBER_READ,
        Permission.USAGE_READ,
    }
)

role_permissions: Mapping[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset(Permission),
    Role.ADMIN: frozenset(Permission) - {Permission.OWNER_WRITE, Permission.BILLING_WRITE},
    Role.DEVELOPER: _viewer | {Permission.KEY_WRITE},
    Role.BILLING: frozenset(
        {
            Permission.TENANT_READ,
            Permission.PROJECT_READ,
            Permission.USAGE_READ,
            Permission.BILLING_READ,
            Permission.BILLING_WRITE,
            Permission.WEBHOOK_READ,
            Permission.WEBHOOK_WRITE,
        }
    ),
    Role.VIEWER: _viewer,
}

# What concerns all of a tenant, and so is for nobody whose reach ends at some of its projects.
tenant_wide_permissions = frozenset(
    {
        Permission.PROJECT_WRITE,
        Permission.MEMBER_WRITE,
        Permission.OWNER_WRITE,
        Permission.BILLING_READ,
        Permission.BILLING_WRITE,
        Permission.WEBHOOK_READ,
        Permission.WEBHOOK_WRITE,
        Permission.AUDIT_READ,
    }
)
