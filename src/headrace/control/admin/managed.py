"""How routes become a part of the admin API: each is checked first and, if it changes, recorded.

Routers are mounted route by route. Before a route runs, its caller must have its permission. A
route that is not a GET runs inside one transaction, in which the audit log gets its record: what
was done and what is recorded are committed together, or neither is. What a caller may not do is
recorded as refused, once a minute for the same caller and action.
"""

import asyncio
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from headrace.base.errors import PermissionDenied
from headrace.control.admin.access import (
    actor_of,
    everyone_attribute,
    permission_attribute,
)
from headrace.control.admin.context import AdminContext, context_of
from headrace.control.admin.errors import without_credentials
from headrace.spec.roles import Permission

detail_bytes_max = 8192  # of one record; beyond it only the fields' names are kept
secret_names = re.compile(r"secret|password|token$|engine_key|credential|authorization", re.I)
hidden = "(hidden)"
added_parameter = "managed_request"  # what the wrapper asks FastAPI for


def mount(app: FastAPI, router: APIRouter, prefix: str) -> None:
    """Add the routes of a router to the admin API, guarded and recorded."""
    for route in router.routes:
        if not isinstance(route, APIRoute):
            raise TypeError(f"{route!r} is no route of the admin API")
        endpoint = route.endpoint
        methods = route.methods or {"GET"}
        changes = bool(methods - {"GET", "HEAD"})
        app.add_api_route(
            prefix + route.path,
            recorded(endpoint) if changes else endpoint,
            methods=sorted(methods),
            name=route.name,
            status_code=route.status_code,
            response_model=route.response_model,
            response_class=route.response_class,
            responses=route.responses,
            tags=route.tags,
            dependencies=[
                Depends(permission_check(endpoint)),
                *route.dependencies,
            ],
        )


def permission_check(endpoint: Callable[..., object]) -> Callable[[Request], None]:
    """The dependency that lets only those pass who have the endpoint's permission somewhere."""
    permission: Permission | None = getattr(endpoint, permission_attribute, None)
    is_for_everyone: bool = getattr(endpoint, everyone_attribute, False)

    def check(request: Request) -> None:
        actor = actor_of(request)
        request.state.permission = permission
        request.state.audit_tenant_id = ""
        if is_for_everyone or actor.may_anywhere(permission):
            return
        action = endpoint.__name__
        context = context_of(request)
        if context.refusals.is_new(actor.id, action):
            append(context, request, action, outcome="refused")
        needed = "an operator of the platform" if permission is None else permission.value
        raise PermissionDenied(f"this needs {needed}; you are {actor.name}")

    return check


def recorded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint with its change and its audit record in one transaction.

    One that waits for others can't hold a transaction; its record follows what it did."""

    signature = inspect.signature(endpoint)
    own = [p.name for p in signature.parameters.values() if p.annotation is Request]
    request_name = own[0] if own else added_parameter  # FastAPI hands one request to one name

    def asked_by(values: dict[str, Any]) -> Request:
        request: Request = values[request_name] if own else values.pop(request_name)
        return request

    @functools.wraps(endpoint)
    def run(**values: Any) -> Any:
        request = asked_by(values)
        context = context_of(request)
        with context.database.transaction():
            result = endpoint(**values)
            append(context, request, endpoint.__name__, sent=values, result=result)
        return result

    @functools.wraps(endpoint)
    async def run_waiting(**values: Any) -> Any:
        request = asked_by(values)
        result = await endpoint(**values)
        context = context_of(request)
        record = functools.partial(
            append, context, request, endpoint.__name__, sent=values, result=result
        )
        await asyncio.to_thread(record)
        return result

    chosen = run_waiting if inspect.iscoroutinefunction(endpoint) else run
    added = inspect.Parameter(added_parameter, inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    chosen.__dict__["__signature__"] = signature.replace(
        parameters=[*signature.parameters.values(), *([] if own else [added])]
    )
    return chosen


def append(
    context: AdminContext,
    request: Request,
    action: str,
    *,
    outcome: str = "done",
    sent: Mapping[str, object] | None = None,
    result: object = None,
) -> None:
    """Write the record of one action."""
    actor = actor_of(request)
    detail: dict[str, object] = {}
    for value in (sent or {}).values():
        if isinstance(value, BaseModel):
            detail.update(without_secrets(value.model_dump(mode="json", exclude_unset=True)))
    result_id = getattr(result, "id", None)
    if isinstance(result_id, str):
        detail["result_id"] = result_id
    if len(msgspec.json.encode(detail)) > detail_bytes_max:
        detail = {"fields": sorted(detail)}
    tenant_id = getattr(result, "tenant_id", None) or request.state.audit_tenant_id
    context.database.audit.append(
        record_time=context.clock.wall_s(),
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_name=actor.name,
        action=action,
        outcome=outcome,
        tenant_id=str(tenant_id or ""),
        target=_shown(request.scope["path"])[:255],
        detail=detail,
    )


def without_secrets(values: Mapping[str, object]) -> dict[str, object]:
    """The fields with every value hidden whose name says that it is a secret."""
    kept: dict[str, object] = {}
    for name, value in values.items():
        if secret_names.search(name):
            kept[name] = hidden
        elif isinstance(value, Mapping):
            kept[name] = without_secrets(value)
        elif isinstance(value, str):
            kept[name] = _shown(value)
        else:
            kept[name] = value
    return kept


def _shown(text: str) -> str:
    """A text without the credentials that somebody may have put into it."""
    return without_credentials(text.encode("utf-8", "replace")).decode("utf-8", "replace")
