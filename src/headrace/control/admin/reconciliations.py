"""Routes for the hourly reconciliation: whether what was billed is what engines counted."""

import datetime
from typing import Annotated, TypedDict

from fastapi import APIRouter, Query
from pydantic import BaseModel

from headrace.base.errors import NotFound
from headrace.control.admin.context import Context
from headrace.control.admin.values import Moment, moment, wall_s_of
from headrace.control.hourly_reconciliation import decode_rows
from headrace.storage.reconciliation_reports import StoredReport

router = APIRouter()


class ReconciliationView(BaseModel):
    """One hour: tokens that differ between engines and bills, and those without a reason."""

    begin_time: datetime.datetime
    end_time: datetime.datetime
    make_time: datetime.datetime
    difference_tokens: int
    unexplained_tokens: int


class ReconciliationRow(BaseModel):
    """One replica in it; engine and model are empty where it was gone already."""

    replica_id: str
    engine: str
    model: str
    requests: int
    engine_prompt_tokens: int
    engine_completion_tokens: int
    billed_prompt_tokens: int
    billed_completion_tokens: int
    difference_tokens: int
    reasons: list[str]


class ReconciliationReport(ReconciliationView):
    """The same with its rows."""

    items: list[ReconciliationRow]


class Reconciliations(BaseModel):
    """Hours, the newest first."""

    items: list[ReconciliationView]


class Head(TypedDict):
    """What a list says of a report."""

    begin_time: datetime.datetime
    end_time: datetime.datetime
    make_time: datetime.datetime
    difference_tokens: int
    unexplained_tokens: int


def head_of(report: StoredReport) -> Head:
    """What a list says of it."""
    return Head(
        begin_time=moment(report.begin_time),
        end_time=moment(report.end_time),
        make_time=moment(report.make_time),
        difference_tokens=report.difference_tokens,
        unexplained_tokens=report.unexplained_tokens,
    )


@router.get("/reconciliations")
def list_reconciliations(
    context: Context, limit: Annotated[int, Query(ge=1, le=1000)] = 24
) -> Reconciliations:
    """List the newest hourly comparisons of engines' counters with what was billed"""
    newest = context.database.reconciliations.newest(limit)
    return Reconciliations(items=[ReconciliationView(**head_of(each)) for each in newest])


@router.get("/reconciliations/at")
def show_reconciliation(
    context: Context, time: Annotated[Moment, Query(description="A moment of the hour.")]
) -> ReconciliationReport:
    """Show the comparison of the hour that a moment is in, by replica, engine and model"""
    found = context.database.reconciliations.covering(wall_s_of(time))
    if found is None:
        raise NotFound("no report of that hour is kept; list those that are", param="time")
    rows = [
        ReconciliationRow(
            replica_id=row.compared.replica_id,
            engine=row.engine,
            model=row.model,
            requests=row.compared.requests,
            engine_prompt_tokens=row.compared.engine_prompt_tokens,
            engine_completion_tokens=row.compared.engine_completion_tokens,
            billed_prompt_tokens=row.compared.billed_prompt_tokens,
            billed_completion_tokens=row.compared.billed_completion_tokens,
            difference_tokens=row.compared.difference_tokens,
            reasons=row.compared.reasons,
        )
        for row in decode_rows(found.body)
    ]
    return ReconciliationReport(items=rows, **head_of(found))
