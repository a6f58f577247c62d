"""The route for goodput: how many requests of each model were good, and how fast budgets burn."""

from fastapi import APIRouter
from pydantic import BaseModel

from headrace.base.errors import Unavailable
from headrace.control.admin.context import Context
from headrace.control.admin.explain import insight_of
from headrace.control.admin.objective_values import ObjectivesView, objectives_view
from headrace.control.goodput_history import target
from headrace.spec.models import Model

router = APIRouter()


class WindowView(BaseModel):
    """One window; null where nothing ended in it."""

    window_s: float
    observed_s: float
    requests: int
    good_requests: int
    good_share: float | None
    burn_rate: float | None


class ModelGoodput(BaseModel):
    """One model's windows, the shortest first."""

    model: str
    objectives: ObjectivesView | None
    target: float
    windows: list[WindowView]


class GoodputView(BaseModel):
    """Every model."""

    items: list[ModelGoodput]


@router.get("/goodput")
def show_goodput(context: Context) -> GoodputView:
    """Show each model's share of good requests, and how fast its error budget burns"""
    live = insight_of(context).live
    if live is None:
        raise Unavailable("this control plane keeps no history of traffic")
    return GoodputView(
        items=[
            ModelGoodput(
                model=model.name,
                objectives=objectives_view(model.objectives),
                target=target,
                windows=[
                    WindowView(
                        window_s=window.window_s,
                        observed_s=window.observed_s,
                        requests=window.requests,
                        good_requests=window.good_requests,
                        good_share=window.good_share,
                        burn_rate=window.burn_rate,
                    )
                    for window in live.goodput.of(model.name)
                ],
            )
            for model in context.database.store.list(Model)
        ]
    )
