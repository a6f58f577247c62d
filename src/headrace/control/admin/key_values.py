"""API keys as the admin API carries them: what may be asked of one, and what is shown."""

import datetime
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from headrace.base.errors import InvalidRequest, PermissionDenied
from headrace.control.admin.context import AdminContext
from headrace.control.admin.limit_values import LimitsBody, LimitsView, limits_of, limits_view
from headrace.control.admin.references import ModelName, Name, Reference, others_of
from headrace.control.admin.values import RequestBody, moment, optional_moment
from headrace.spec.endpoints import endpoint_names
from headrace.spec.limits import Limits
from headrace.spec.models import Model
from headrace.spec.scopes import Scope, narrower
from headrace.spec.tenancy import ApiKey, KeyState, Project, Tenant

lifetime_s_max = 10 * 366 * 24 * 3600
overlap_s_max = 30 * 24 * 3600
networks_max = 100


def _check_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is no network; write for example 203.0.113.0/24") from None


def _check_endpoint(name: str) -> str:
    if name not in endpoint_names:
        raise ValueError(f"there is no endpoint {name!r}; choose from {', '.join(endpoint_names)}")
    return name


Lifetime = Annotated[int, Field(ge=1, le=lifetime_s_max)]
ModelNames = Annotated[list[ModelName], Field(min_length=1, max_length=1000)]
Endpoint = Annotated[str, Field(max_length=32), AfterValidator(_check_endpoint)]
Endpoints = Annotated[list[Endpoint], Field(min_length=1, max_length=len(endpoint_names))]
Network = Annotated[str, Field(max_length=64), AfterValidator(_check_network)]
Networks = Annotated[list[Network], Field(min_length=1, max_length=networks_max)]
ModelLimits = Annotated[dict[ModelName, LimitsBody], Field(max_length=1000)]


class KeyFields(RequestBody):
    """What a key is for; null: no bound."""

    models: ModelNames | None = None
    endpoints: Endpoints | None = None
    allowed_networks: Networks | None = None
    expires_in_s: Lifetime | None = None
    limits: LimitsBody | None = None
    model_limits: ModelLimits | None = None


class KeyCreate(KeyFields):
    """A new key of a project."""

    project: Reference
    name: Name | None = None  # None: made from the id


class KeyChange(KeyFields):
    """What is to change; what is not named stays, and null takes a bound away."""

    name: Name | None = None


class KeyRotate(RequestBody):
    """How long the old key goes on working beside the new one; 0: not at all."""

    overlap_s: Annotated[int, Field(ge=0, le=overlap_s_max)] = 3600


class KeyView(BaseModel):
    """A key without its secret."""

    id: str
    name: str
    project_id: str
    project: str
    tenant_id: str
    tenant: str
    state: Literal["active", "revoked", "expired"]
    models: list[str] | None  # null: every model
    endpoints: list[str] | None  # null: every endpoint
    allowed_networks: list[str] | None  # null: from anywhere
    create_time: datetime.datetime
    expire_time: datetime.datetime | None
    limits: LimitsView | None
    model_limits: dict[str, LimitsView] | None
    successor_id: str | None  # the key that took its place
    created_by: str | None


class KeyCreated(KeyView):
    """A new key, shown this once."""

    key: str


class KeyViews:
    """Views of keys with the names of whose they are, which are read once an answer."""

    def __init__(self, context: AdminContext) -> None:
        store = context.database.store
        self._now_s = context.clock.wall_s()
        self._projects = {project.id: project for project in store.list(Project)}
        self._tenant_names = {tenant.id: tenant.name for tenant in store.list(Tenant)}

    def of(self, key: ApiKey) -> KeyView:
        """One key."""
        project = self._projects.get(key.parent_id)
        tenant_id = project.parent_id if project else ""
        return KeyView(
            id=key.id,
            name=key.name,
            project_id=key.parent_id,
            project=project.name if project else "",
            tenant_id=tenant_id,
            tenant=self._tenant_names.get(tenant_id, ""),
            state=self._state(key),
            models=None if key.models is None else list(key.models),
            endpoints=None if key.endpoints is None else list(key.endpoints),
            allowed_networks=None if key.allowed_networks is None else list(key.allowed_networks),
            create_time=moment(key.create_time),
            expire_time=optional_moment(key.expire_time),
            limits=limits_view(key.limits),
            model_limits=_model_limits_view(key.model_limits),
            successor_id=key.successor_id or None,
            created_by=key.created_by or None,
        )

    def _state(self, key: ApiKey) -> Literal["active", "revoked", "expired"]:
        if key.state is KeyState.REVOKED:
            return "revoked"
        if key.expire_time is not None and key.expire_time <= self._now_s:
            return "expired"
        return "active"


def key_values(
    body: KeyFields, names: frozenset[str], context: AdminContext, scope: Scope
) -> dict[str, object]:
    """The values of a key for the fields in `names`, cut to what its maker's `scope` allows.

    InvalidRequest for a model that does not exist, PermissionDenied if nothing would be left."""
    wanted = set(body.models or ()) | set(body.model_limits or ())
    known = {model.name for model in context.database.store.list(Model)}
    unknown = sorted(wanted - known)
    if unknown:
        seen = known if scope.models is None else known.intersection(scope.models)
        raise InvalidRequest(
            f"there is no model named {unknown[0]!r}; {others_of(unknown[0], seen)}",
            param="models",
        )
    values: dict[str, object] = {}
    if "models" in names:
        values["models"] = allowed(body.models, scope.models, "models")
    if "endpoints" in names:
        values["endpoints"] = allowed(body.endpoints, scope.endpoints, "endpoints")
    if "allowed_networks" in names:
        networks = body.allowed_networks
        values["allowed_networks"] = None if networks is None else tuple(dict.fromkeys(networks))
    if "expires_in_s" in names:
        lifetime_s = body.expires_in_s
        values["expire_time"] = None if lifetime_s is None else context.clock.wall_s() + lifetime_s
    if "limits" in names:
        values["limits"] = limits_of(body.limits)
    if "model_limits" in names:
        values["model_limits"] = _model_limits(body.model_limits)
    return values


def allowed(
    asked: Sequence[str] | None, mine: frozenset[str] | None, param: str
) -> tuple[str, ...] | None:
    """What of the asked-for names may be given on: all of them, or those that one has oneself."""
    cut = narrower(None if asked is None else frozenset(asked), mine)
    if cut is None:
        return None
    if not cut:
        raise PermissionDenied(
            f"none of these {param} is yours to give; you have {', '.join(sorted(mine or ()))}",
            param=param,
        )
    order = asked if asked is not None else sorted(cut)
    return tuple(name for name in dict.fromkeys(order) if name in cut)


def _model_limits(body: dict[str, LimitsBody] | None) -> Mapping[str, Limits] | None:
    limits = {name: limits_of(value) for name, value in (body or {}).items()}
    kept = {name: value for name, value in limits.items() if value is not None}
    return kept or None


def _model_limits_view(limits: Mapping[str, Limits] | None) -> dict[str, LimitsView] | None:
    views = {name: limits_view(value) for name, value in (limits or {}).items()}
    return {name: view for name, view in views.items() if view is not None} or None
