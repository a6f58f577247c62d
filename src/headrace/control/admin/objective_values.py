"""A model's latency objectives as the API takes and shows them."""

from typing import Annotated

from pydantic import BaseModel, Field

from headrace.control.admin.values import RequestBody
from headrace.spec.models import Objectives

Seconds = Annotated[float, Field(gt=0, le=3600)]


class ObjectivesBody(RequestBody):
    """What a good request takes at most; what is not named has no objective."""

    ttft_s: Seconds | None = None  # from admission to the first output
    inter_token_s: Seconds | None = None  # between two outputs, on average over the answer


class ObjectivesView(BaseModel):
    """The same, as it stands."""

    ttft_s: float | None
    inter_token_s: float | None


def objectives_of(body: ObjectivesBody | None) -> Objectives | None:
    """The objectives of a request's body; None where it names none."""
    if body is None or (body.ttft_s is None and body.inter_token_s is None):
        return None
    return Objectives(ttft_s=body.ttft_s, inter_token_s=body.inter_token_s)


def objectives_view(objectives: Objectives | None) -> ObjectivesView | None:
    """What is shown of them."""
    if objectives is None:
        return None
    return ObjectivesView(ttft_s=objectives.ttft_s, inter_token_s=objectives.inter_token_s)
