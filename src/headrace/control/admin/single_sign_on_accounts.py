"""From an identity provider's claims to an account and its roles here.

A person is known by issuer and subject, never by a login or an e-mail address: those may pass to
somebody else, and a local account of that name is not theirs to take. Roles that came from claims
follow the claims at each sign-in; those that were given here stay.
"""

import re
from collections.abc import Mapping

import msgspec

from headrace.base.errors import AuthenticationFailed, PermissionDenied
from headrace.base.ids import new_id
from headrace.control.admin.context import AdminContext
from headrace.control.admin.single_sign_on import SingleSignOnSettings, values_of
from headrace.spec.accounts import Member, User
from headrace.spec.roles import Role, role_permissions
from headrace.spec.tenancy import Tenant

text_length_max = 200


def account_of(
    claims: Mapping[str, object], settings: SingleSignOnSettings, context: AdminContext
) -> User:
    """The account that these claims are of, made or brought up to date, in one transaction.

    PermissionDenied for somebody without any role and for a closed account."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise AuthenticationFailed("the identity provider did not say who this is")
    granted = values_of(claims, settings.claim)
    rules = [rule for rule in settings.rules if rule.value in granted]
    with context.database.transaction():
        store = context.database.store
        known = [
            user
            for user in store.list(User)
            if (user.issuer, user.subject) == (settings.issuer, subject)
        ]
        if known and not known[0].active:
            raise PermissionDenied("this account is closed; ask an operator")
        if not known and not rules:
            raise PermissionDenied("you have no role on this platform; ask an operator")
        user = known[0] if known else _new_user(claims, subject, settings.issuer, context)
        is_operator = any(rule.operator for rule in rules)
        current = msgspec.structs.replace(
            user,
            display_name=_text(claims, "name"),
            email=_text(claims, "email"),
            is_operator=is_operator,
        )
        if current != user:
            user = store.update(current)
        roles = _roles(rules_of_tenants(settings, granted), context)
        _follow(user, roles, context)
        if not is_operator and not any(m.name == user.id for m in store.list(Member)):
            raise PermissionDenied("you have no role on this platform any more; ask an operator")
    return user


def rules_of_tenants(
    settings: SingleSignOnSettings, granted: frozenset[str]
) -> list[tuple[str, Role]]:
    """The tenants' names and roles that the granted values give."""
    return [
        (rule.tenant, rule.role)
        for rule in settings.rules
        if rule.value in granted and rule.tenant is not None and rule.role is not None
    ]


def _roles(named: list[tuple[str, Role]], context: AdminContext) -> dict[str, Role]:
    """By tenant id, of several roles the one that allows most; unknown tenants give nothing."""
    ids = {tenant.name: tenant.id for tenant in context.database.store.list(Tenant)}
    roles: dict[str, Role] = {}
    for name, role in named:
        tenant_id = ids.get(name)
        if tenant_id is None:
            continue
        other = roles.get(tenant_id)
        if other is None or len(role_permissions[role]) > len(role_permissions[other]):
            roles[tenant_id] = role
    return roles


def _follow(user: User, roles: Mapping[str, Role], context: AdminContext) -> None:
    """Make the memberships from claims those of `roles`."""
    store = context.database.store
    mine = {m.parent_id: m for m in store.list(Member) if m.name == user.id}
    for tenant_id, member in mine.items():
        if member.from_claims and tenant_id not in roles:
            store.delete(member)
    for tenant_id, role in roles.items():
        existing = mine.get(tenant_id)
        if existing is None:
            store.create(
                Member(
                    id=new_id(Member.id_prefix, context.clock),
                    name=user.id,
                    parent_id=tenant_id,
                    create_time=context.clock.wall_s(),
                    role=role,
                    from_claims=True,
                )
            )
        elif existing.from_claims and existing.role is not role:
            store.update(msgspec.structs.replace(existing, role=role))


def _new_user(
    claims: Mapping[str, object], subject: str, issuer: str, context: AdminContext
) -> User:
    user_id = new_id(User.id_prefix, context.clock)
    wanted = _text(claims, "preferred_username") or _text(claims, "email") or "person"
    login = re.sub(r"[^a-z0-9._@+-]", "-", wanted.lower())[:100].lstrip("._@+-") or "person"
    store = context.database.store
    if store.find(User, login) is not None:
        login = f"{login}-{user_id[-8:]}"
    return store.create(
        User(
            id=user_id,
            name=login,
            create_time=context.clock.wall_s(),
            issuer=issuer,
            subject=subject,
        )
    )


def _text(claims: Mapping[str, object], name: str) -> str:
    value = claims.get(name)
    return value[:text_length_max] if isinstance(value, str) else ""
