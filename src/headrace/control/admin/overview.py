"""The route for what the console shows first: the traffic of the last minutes."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from headrace.base.errors import Unavailable
from headrace.control.admin.context import Context
from headrace.control.admin.explain import insight_of
from headrace.control.live_history import objective_first_token_s, success_age_s_max

router = APIRouter()


class PointView(BaseModel):
    """Traffic around a moment; null where nothing was answered."""

    time_s: float
    requests_per_s: float
    tokens_per_s: float
    completion_tokens_per_s: float
    failures_per_s: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    good_share: float | None
    running: int
    waiting: int


class LoadView(BaseModel):
    """What is under way for one deployment, over all gateways."""

    deployment_id: str
    running: int
    queued_tokens: int
    kv_share: float


class LiveView(BaseModel):
    """The last minutes, the oldest first, and what is under way."""

    status: Literal["serving", "quiet"]  # serving: somebody got an answer within a minute
    last_success_age_s: float | None
    objective_first_token_s: float
    points: list[PointView]
    loads: list[LoadView]


@router.get("/live")
def show_live(context: Context) -> LiveView:
    """Show the traffic of the last minutes: rates, first tokens, and what runs and waits."""
    live = insight_of(context).live
    if live is None:
        raise Unavailable("this control plane keeps no history of traffic")
    age_s = live.success_age_s()
    return LiveView(
        status="serving" if age_s is not None and age_s <= success_age_s_max else "quiet",
        last_success_age_s=age_s,
        objective_first_token_s=objective_first_token_s,
        points=[
            PointView(
                time_s=point.time_s,
                requests_per_s=point.requests_per_s,
                tokens_per_s=point.tokens_per_s,
                completion_tokens_per_s=point.completion_tokens_per_s,
                failures_per_s=point.failures_per_s,
                first_token_p50_s=point.first_token_p50_s,
                first_token_p99_s=point.first_token_p99_s,
                good_share=point.good_share,
                running=point.running,
                waiting=point.waiting,
            )
            for point in live.points()
        ],
        loads=[
            LoadView(
                deployment_id=deployment_id,
                running=load.in_flight_requests,
                queued_tokens=load.queued_tokens,
                kv_share=load.kv_share,
            )
            for deployment_id, load in live.loads().items()
        ],
    )
