"""Who pays, what they group work by, and what a client presents."""

from collections.abc import Mapping
from enum import StrEnum

from headrace.spec.limits import Limits
from headrace.spec.priority import Priority
from headrace.spec.resource import Resource


class Tenant(Resource, frozen=True, kw_only=True, tag="tenant"):
    """Who pays."""

    kind = "tenant"
    id_prefix = "ten"

    active: bool = True
    credit_floor_nanousd: int | None = None  # the balance may not fall below it; None: postpaid
    priority_highest: Priority = Priority.INTERACTIVE  # requests that ask for more get this
    limits: Limits | None = None  # over all that the tenant sends


class Project(Resource, frozen=True, kw_only=True, tag="project"):
    """What a tenant groups work by; `parent_id` is the tenant."""

    kind = "project"
    id_prefix = "prj"

    active: bool = True
    limits: Limits | None = None
    caches_answers: bool = False  # the same request again, soon after, gets the same answer free


class KeyState(StrEnum):
    """An API key's life."""

    ACTIVE = "active"
    REVOKED = "revoked"


class ApiKey(Resource, frozen=True, kw_only=True, tag="api_key"):
    """What a client presents: `hr_<key id body>_<secret>`; `parent_id` is the project."""

    kind = "api_key"
    id_prefix = "key"

    secret_hmac: bytes  # HMAC-SHA256 of the secret under the server's pepper
    state: KeyState = KeyState.ACTIVE
    models: tuple[str, ...] | None = None  # logical model names it may use; None: all
    endpoints: tuple[str, ...] | None = None  # `spec.endpoints` names it may call; None: all
    allowed_networks: tuple[str, ...] | None = None  # CIDR, where it may call from; None: anywhere
    expire_time: float | None = None
    limits: Limits | None = None
    model_limits: Mapping[str, Limits] | None = None  # by logical model name, within `limits`
    successor_id: str = ""  # the key that took its place when it was rotated
    created_by: str = ""  # the id of who made it
