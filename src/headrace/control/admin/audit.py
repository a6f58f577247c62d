"""Routes that read the audit log; nothing writes it but the actions themselves."""

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from headrace.control.admin.access import Access, allows
from headrace.control.admin.context import Context
from headrace.control.admin.values import moment
from headrace.spec.audit import ChainedRecord
from headrace.spec.roles import Permission

router = APIRouter()

records_max = 1000
noted_hash = r"[1-9][0-9]{0,17}:[0-9a-f]{64}"
NotedHashes = Annotated[
    str,
    Query(
        pattern=rf"^({noted_hash}(,{noted_hash}){{0,19}})?$",
        description="NUMBER:HASH of records, comma-separated",
    ),
]


class AuditRecordView(BaseModel):
    """One action, with its hash and everything that it is of."""

    sequence: int
    record_time: datetime.datetime
    actor_kind: str
    actor_id: str
    actor_name: str
    action: str
    outcome: str
    tenant_id: str
    target: str
    detail: dict[str, object]
    hash: str


class AuditRecords(BaseModel):
    """A part of the log; `next` is the `after` of the following part, or null at the end."""

    items: list[AuditRecordView]
    next: str | None


class AuditVerification(BaseModel):
    """Whether the chain is whole, and its newest hash, to be noted elsewhere."""

    sound: bool
    findings: list[str]
    records: int
    head_hash: str | None


class AuditQuery(BaseModel):
    """Which records."""

    tenant: Annotated[str, Field(max_length=200)] | None = None
    after: Annotated[str, Field(pattern=r"^[0-9]{0,18}$")] = ""
    limit: Annotated[int, Field(ge=1, le=records_max)] = 100
    newest_first: bool = False


@router.get("/audit")
@allows(Permission.AUDIT_READ)
def list_audit_records(
    query: Annotated[AuditQuery, Query()], access: Access, context: Context
) -> AuditRecords:
    """Read the log: all of it for an operator, a tenant's own records for its owner."""
    tenant = access.one_tenant(query.tenant)
    records = context.database.audit.read(
        after=int(query.after or 0),
        limit=query.limit,
        tenant_id=None if tenant is None else tenant.id,
        newest_first=query.newest_first,
    )
    last = records[-1].record.sequence if len(records) == query.limit else None
    return AuditRecords(
        items=[_view(item) for item in records], next=None if last is None else str(last)
    )


@router.get("/audit/verify")
def verify_audit_log(context: Context, noted: NotedHashes = "") -> AuditVerification:
    """Recompute every hash of the log, and compare those that were noted elsewhere."""
    pairs = (each.split(":") for each in noted.split(",") if each)
    findings = context.database.audit.verify({int(number): digest for number, digest in pairs})
    newest = context.database.audit.read(limit=1, newest_first=True)
    return AuditVerification(
        sound=not findings,
        findings=findings,
        records=newest[0].record.sequence if newest else 0,
        head_hash=newest[0].hash if newest else None,
    )


def _view(item: ChainedRecord) -> AuditRecordView:
    record = item.record
    return AuditRecordView(
        sequence=record.sequence,
        record_time=moment(record.record_time),
        actor_kind=record.actor_kind,
        actor_id=record.actor_id,
        actor_name=record.actor_name,
        action=record.action,
        outcome=record.outcome,
        tenant_id=record.tenant_id,
        target=record.target,
        detail=dict(record.detail),
        hash=item.hash,
    )
