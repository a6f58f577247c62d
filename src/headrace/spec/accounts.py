"""Who manages: people, their membership of tenants, and the programs that act for a tenant."""

from headrace.spec.resource import Resource
from headrace.spec.roles import Permission, Role, role_permissions
from headrace.spec.scopes import Scope


class User(Resource, frozen=True, kw_only=True, tag="user"):
    """A person; `name` is what they sign in with, in lower case."""

    kind = "user"
    id_prefix = "usr"

    display_name: str = ""
    email: str = ""
    password_hash: str | None = None  # argon2id; None: signs in by single sign-on only
    is_operator: bool = False  # above all tenants
    active: bool = True
    issuer: str = ""  # of the OpenID provider that this person came from
    subject: str = ""  # their id there; a login or an e-mail address may change hands


class Member(Resource, frozen=True, kw_only=True, tag="member"):
    """A person's role in a tenant; `parent_id` is the tenant, `name` the user's id."""

    kind = "member"
    id_prefix = "mem"

    role: Role
    from_claims: bool = False  # set by single sign-on at each sign-in, and taken back by it

    @property
    def scope(self) -> Scope:
        """What the role allows."""
        return Scope(permissions=role_permissions[self.role])


class ServiceAccount(Resource, frozen=True, kw_only=True, tag="service_account"):
    """A program that manages a tenant, `parent_id`; it presents `hrs_<id body>_<secret>`."""

    kind = "service_account"
    id_prefix = "svc"

    secret_hmac: bytes
    permissions: tuple[Permission, ...] = ()
    projects: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    active: bool = True
    expire_time: float | None = None
    created_by: str = ""  # the actor's id

    @property
    def scope(self) -> Scope:
        """What it was given when it was made: never more than its maker had."""
        return Scope(
            permissions=frozenset(self.permissions),
            projects=None if self.projects is None else frozenset(self.projects),
            models=None if self.models is None else frozenset(self.models),
            endpoints=None if self.endpoints is None else frozenset(self.endpoints),
        ).without_tenant_wide()
