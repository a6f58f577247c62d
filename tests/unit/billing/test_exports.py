"""Usage for other systems: nothing is lost or counted twice on the way."""

import csv
import datetime
import io
import json

import msgspec
import pytest

from headrace.base.money import parse_usd
from headrace.billing.exports import cloud_events, daily_uses, focus_columns, focus_csv
from headrace.spec.settlements import (
    Charge,
    Outcome,
    Settlement,
    TokenUsage,
    UnitCounts,
    UsageSource,
)

new_year_s = 1_798_761_600.0  # 2027-01-01 00:00 UTC


def settled(request_id: str, time_s: float, *, rated: bool = True) -> Settlement:
    return Settlement(
        request_id=request_id,
        tenant_id="ten_a",
        project_id="prj_a",
        key_id="key_a",
        model="small",
        usage=TokenUsage(10, 4, 6, reasoning_tokens=2),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb" if rated else None,
        charge=Charge(input_nanousd=60, cached_input_nanousd=4, output_nanousd=36, waived_nanousd=1)
        if rated
        else None,
        settle_time=time_s,
    )


@pytest.fixture
def settlements() -> list[Settlement]:
    return [
        settled("r1", new_year_s - 1),
        settled("r2", new_year_s),
        settled("r3", new_year_s + 1, rated=False),
    ]


def test_focus_rows_add_up_to_the_charges(settlements: list[Settlement]) -> None:
    names = {"ten_a": "acme", "prj_a": 'web, "main"'}
    text = b"".join(focus_csv(daily_uses(settlements), names, "Compute GmbH")).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == focus_columns
    assert sum(parse_usd(row["BilledCost"]) for row in rows) == 99 * 2
    tokens = sum(int(row["ConsumedQuantity"] or 0) for row in rows)
    assert tokens == 3 * 16
    assert {row["SubAccountName"] for row in rows} == {'web, "main"'}
    december, january = rows[0], rows[-1]
    assert december["BillingPeriodStart"] == "2026-12-01T00:00:00Z"
    assert december["BillingPeriodEnd"] == "2027-01-01T00:00:00Z"
    assert january["ChargePeriodEnd"] == "2027-01-02T00:00:00Z"


def test_an_event_carries_the_requests_id(settlements: list[Settlement]) -> None:
    events = [json.loads(line) for line in cloud_events(settlements)]
    assert [event["id"] for event in events] == ["r1", "r2", "r3"]
    assert {event["specversion"] for event in events} == {"1.0"}
    assert datetime.datetime.fromisoformat(events[1]["time"]).timestamp() == new_year_s
    assert events[0]["data"]["reasoning_tokens"] == 2
    assert events[0]["data"]["amount_usd"] == "0.000000099"
    assert events[2]["data"]["amount_nanousd"] is None


def test_units_are_rows_in_their_own_measure() -> None:
    charge = Charge(per_request_nanousd=5, per_image_nanousd=40, per_second_nanousd=7)
    units = UnitCounts(1, 2, 1500)
    used = msgspec.structs.replace(settled("r", new_year_s), charge=charge, units=units)
    text = b"".join(focus_csv(daily_uses([used]), {}, "Compute GmbH")).decode()
    rows = {row["ConsumedUnit"]: row for row in csv.DictReader(io.StringIO(text))}
    assert [rows[unit]["ConsumedQuantity"] for unit in ("Requests", "Images", "Seconds")] == [
        "1",
        "2",
        "1.5",
    ]
    assert rows["Images"]["ChargeDescription"] == "images of small"
    (event,) = cloud_events([used])
    assert json.loads(event)["data"]["audio_ms"] == 1500
