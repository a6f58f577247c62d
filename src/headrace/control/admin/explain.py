"""Routes that say why: where a request went, and how many replicas a deployment has."""

import re

import msgspec
from fastapi import APIRouter
from pydantic import JsonValue
from starlette.responses import Response

from headrace.base.errors import InvalidRequest, NotFound, Unavailable
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.references import resolve
from headrace.control.insight import Insight
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model

router = APIRouter()

request_id_pattern = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def insight_of(context: AdminContext) -> Insight:
    """What knows; Unavailable where nothing does."""
    if context.insight is None:
        raise Unavailable("this control plane follows no gateways; start it with `headrace up`")
    return context.insight


@router.get("/explain/route/{request_id}")
async def explain_route(request_id: str, context: Context) -> Response:
    """Show how the router chose for a request: candidates, filters, terms of the cost, choice."""
    if not request_id_pattern.fullmatch(request_id):
        raise InvalidRequest(
            "a request id is what the X-Request-Id header of an answer says", param="request_id"
        )
    body = await insight_of(context).route(request_id)
    return Response(body, media_type="application/json")


@router.get("/explain/scaling/{deployment:path}")
def explain_scaling(deployment: str, context: Context) -> dict[str, JsonValue]:
    """Show the last look at a deployment that scales: what was seen, needed, granted, and why."""
    found = resolve(context.database.store, Deployment, deployment, Model)
    if found.autoscaling is None:
        raise NotFound(
            f"the deployment {found.name!r} has a fixed number of replicas, {found.replicas}; "
            "give it bounds with `headrace deployments update --min --max`"
        )
    look = insight_of(context).scaling.get(found.id)
    if look is None:
        raise Unavailable(
            "no look was made yet; ask again in some seconds, at the control plane that leads"
        )
    seen: dict[str, JsonValue] = msgspec.json.decode(msgspec.json.encode(look))
    proposal = seen["proposal"]
    assert isinstance(proposal, dict)
    proposal["needs"] = dict(look.proposal.needs)
    return {"deployment": found.name, "model": look_model(context, found), **seen}


def look_model(context: AdminContext, deployment: Deployment) -> str:
    """The name of the model that a deployment serves."""
    return context.database.store.get(Model, deployment.parent_id).name
