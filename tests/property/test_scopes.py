"""However credentials make credentials, none reaches further than the one that began."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spec.roles import Permission, Role, role_permissions, tenant_wide_permissions
from headrace.spec.scopes import Scope

names = st.frozensets(st.sampled_from("abcd"), max_size=4) | st.none()
scopes = st.builds(
    Scope,
    permissions=st.frozensets(st.sampled_from(Permission)),
    projects=names,
    models=names,
    endpoints=names,
)


def may(scope: Scope, permission: Permission, project: str, model: str, endpoint: str) -> bool:
    """The slow and obvious reading of a scope."""
    return (
        permission in scope.permissions
        and (scope.projects is None or project in scope.projects)
        and (scope.models is None or model in scope.models)
        and (scope.endpoints is None or endpoint in scope.endpoints)
    )


@given(
    chain=st.lists(scopes, min_size=1, max_size=5),
    permission=st.sampled_from(Permission),
    project=st.sampled_from("abcde"),
    model=st.sampled_from("abcde"),
    endpoint=st.sampled_from("abcde"),
)
def test_a_chain_of_children_may_what_all_of_them_may(
    chain: list[Scope], permission: Permission, project: str, model: str, endpoint: str
) -> None:
    reached = chain[0]
    for asked in chain[1:]:
        reached = asked.intersect(reached)
        assert reached.within(chain[0])
    expected = all(may(scope, permission, project, model, endpoint) for scope in chain)
    assert may(reached, permission, project, model, endpoint) is expected


@given(one=scopes, other=scopes)
def test_intersection_has_no_order_and_repeating_it_changes_nothing(
    one: Scope, other: Scope
) -> None:
    assert one.intersect(other) == other.intersect(one)
    assert one.intersect(other).intersect(other) == one.intersect(other)
    assert one.within(one)


@given(scope=scopes)
def test_whoever_ends_at_projects_has_nothing_of_the_whole_tenant(scope: Scope) -> None:
    cut = scope.without_tenant_wide()
    assert cut.within(scope)
    assert cut == scope or scope.projects is not None
    assert cut.projects is None or not cut.permissions & tenant_wide_permissions


def test_roles_are_what_they_are_called() -> None:
    writes = {permission for permission in Permission if permission.value.endswith(".write")}
    assert not role_permissions[Role.VIEWER] & writes
    assert role_permissions[Role.DEVELOPER] & writes == {Permission.KEY_WRITE}
    assert role_permissions[Role.BILLING] & writes == {
        Permission.BILLING_WRITE,
        Permission.WEBHOOK_WRITE,
    }
    assert role_permissions[Role.OWNER] == set(Permission)
    assert Permission.OWNER_WRITE not in role_permissions[Role.ADMIN]
