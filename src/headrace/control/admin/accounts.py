"""Routes for people and their roles: accounts, made by operators, and members of tenants."""

import datetime
import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, SecretStr, StringConstraints

from headrace.base.errors import Conflict, PermissionDenied
from headrace.base.ids import new_id
from headrace.control.admin.access import Access, GrantedAccess, allows
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.pages import After, Limit, Page, page_items_default, page_of
from headrace.control.admin.references import Reference, reject_id_as_name, resolve
from headrace.control.admin.sign_in import hash_password, password_length_max
from headrace.control.admin.values import RequestBody, moment
from headrace.spec.accounts import Member, User
from headrace.spec.roles import Permission, Role, role_permissions
from headrace.spec.scopes import Scope
from headrace.spec.tenancy import Tenant

router = APIRouter()

login_pattern = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"
Login = Annotated[
    str,
    StringConstraints(pattern=login_pattern, min_length=1, max_length=128, to_lower=True),
]
Password = Annotated[SecretStr, Field(max_length=password_length_max)]
DisplayName = Annotated[str, Field(max_length=200)]


class UserCreate(RequestBody):
    """A new local account; without a password one is made and shown once."""

    login: Login
    password: Password | None = None
    display_name: DisplayName = ""
    email: DisplayName = ""
    is_operator: bool = False


class UserChange(RequestBody):
    """What is to change; what is not named stays."""

    password: Password | None = None
    display_name: DisplayName | None = None
    email: DisplayName | None = None
    is_operator: bool | None = None
    active: bool | None = None


class UserView(BaseModel):
    """A person."""

    id: str
    login: str
    display_name: str
    email: str
    is_operator: bool
    active: bool
    has_password: bool
    single_sign_on: bool
    create_time: datetime.datetime


class UserCreated(UserView):
    """A new account, with the password that was made for it."""

    initial_password: str | None


class MemberPut(RequestBody):
    """A person's role in a tenant."""

    tenant: Reference
    user: Reference
    role: Role


class MemberView(BaseModel):
    """A person's role in a tenant."""

    id: str
    tenant_id: str
    tenant: str
    user_id: str
    login: str
    role: Role
    from_single_sign_on: bool
    create_time: datetime.datetime


@router.post("/users", status_code=201)
def create_user(body: UserCreate, context: Context) -> UserCreated:
    """Create a local account."""
    reject_id_as_name(body.login)
    made = None if body.password is not None else secrets.token_urlsafe(18)
    password = made or (body.password.get_secret_value() if body.password else "")
    user = context.database.store.create(
        User(
            id=new_id(User.id_prefix, context.clock),
            name=body.login,
            create_time=context.clock.wall_s(),
            display_name=body.display_name,
            email=body.email,
            password_hash=hash_password(password),
            is_operator=body.is_operator,
        )
    )
    return UserCreated(**dict(_user_view(user)), initial_password=made)


@router.get("/users")
def list_users(
    context: Context, limit: Limit = page_items_default, after: After = ""
) -> Page[UserView]:
    """List people."""
    return page_of(context.database.store.list(User), after, limit, _user_view)


@router.get("/users/{user}")
def show_user(user: str, context: Context) -> UserView:
    """Show one person."""
    return _user_view(resolve(context.database.store, User, user))


@router.patch("/users/{user}")
def update_user(user: str, body: UserChange, context: Context) -> UserView:
    """Change an account; a new password or deactivation ends its sessions at once."""
    found = resolve(context.database.store, User, user)
    changes: dict[str, object] = {
        name: value
        for name in ("display_name", "email", "is_operator", "active")
        if (value := getattr(body, name)) is not None
    }
    if body.password is not None:
        changes["password_hash"] = hash_password(body.password.get_secret_value())
    changed = context.database.store.update(msgspec.structs.replace(found, **changes))
    if "password_hash" in changes or not changed.active:
        context.credentials.close_sessions_of(changed.id)
    return _user_view(changed)


@router.put("/members", status_code=200)
@allows(Permission.MEMBER_WRITE)
def put_member(body: MemberPut, access: Access, context: Context) -> MemberView:
    """Give a person a role in a tenant, in place of the one they had."""
    store = context.database.store
    tenant = access.resolve(Tenant, body.tenant)
    user = resolve(store, User, body.user)
    _check_may_give(access, tenant.id, body.role)
    existing = store.find(Member, user.id, tenant.id)
    if existing is None:
        member = store.create(
            Member(
                id=new_id(Member.id_prefix, context.clock),
                name=user.id,
                parent_id=tenant.id,
                create_time=context.clock.wall_s(),
                role=body.role,
            )
        )
    else:
        _check_may_take(access, context, existing)
        member = store.update(msgspec.structs.replace(existing, role=body.role, from_claims=False))
    return _MemberViews(context).of(member)


@router.get("/members")
@allows(Permission.MEMBER_READ)
def list_members(
    access: Access,
    context: Context,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = page_items_default,
    after: After = "",
) -> Page[MemberView]:
    """List the members of a tenant, or of all."""
    parent_id = None if tenant is None else access.resolve(Tenant, tenant).id
    return page_of(access.visible.list(Member, parent_id), after, limit, _MemberViews(context).of)


@router.delete("/members/{member}")
@allows(Permission.MEMBER_WRITE)
def remove_member(member: str, access: Access, context: Context) -> MemberView:
    """Take a person's role in a tenant away; `member` is the membership's id."""
    found = access.resolve(Member, member)
    view = _MemberViews(context).of(found)
    _check_may_take(access, context, found)
    context.database.store.delete(found)
    return view


def _check_may_give(access: GrantedAccess, tenant_id: str, role: Role) -> None:
    """Nobody gives a role that allows more than they may themselves, and on more."""
    for permission in sorted(role_permissions[role]):
        access.require(permission, tenant_id)
    if not Scope(permissions=role_permissions[role]).within(access.scope_in(tenant_id)):
        raise PermissionDenied("a member is bound to no models or projects, and you are")


def _check_may_take(access: GrantedAccess, context: AdminContext, member: Member) -> None:
    """Nobody changes whoever may more than they; and the last owner stays."""
    _check_may_give(access, member.parent_id, member.role)
    if member.role is not Role.OWNER or access.actor.is_operator:
        return
    members = context.database.store.list(Member, member.parent_id)
    if sum(item.role is Role.OWNER for item in members) == 1:
        raise Conflict("this is the tenant's last owner; name another one first")


class _MemberViews:
    """Views of members with the names that belong to them, which are read once an answer."""

    def __init__(self, context: AdminContext) -> None:
        store = context.database.store
        self._users = {user.id: user.name for user in store.list(User)}
        self._tenants = {tenant.id: tenant.name for tenant in store.list(Tenant)}

    def of(self, member: Member) -> MemberView:
        return MemberView(
            id=member.id,
            tenant_id=member.parent_id,
            tenant=self._tenants.get(member.parent_id, ""),
            user_id=member.name,
            login=self._users.get(member.name, ""),
            role=member.role,
            from_single_sign_on=member.from_claims,
            create_time=moment(member.create_time),
        )


def _user_view(user: User) -> UserView:
    return UserView(
        id=user.id,
        login=user.name,
        display_name=user.display_name,
        email=user.email,
        is_operator=user.is_operator,
        active=user.active,
        has_password=user.password_hash is not None,
        single_sign_on=bool(user.subject),
        create_time=moment(user.create_time),
    )
