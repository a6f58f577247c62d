"""Usage through the API."""

import pytest
from starlette.testclient import TestClient

from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.storage import Database

noon = 1_790_000_000.0  # 2026-09-21 UTC


def settle(database: Database, tenant_id: str, number: int, model: str = "small") -> None:
    database.ledger.post(
        [
            Settlement(
                request_id=f"req-{number}",
                tenant_id=tenant_id,
                project_id="prj_gone",
                key_id="key_gone",
                model=model,
                usage=TokenUsage(prompt_tokens=10, cached_tokens=4, completion_tokens=3),
                outcome=Outcome.FINISHED,
                source=UsageSource.ENGINE,
                price_book_id="prb_1",
                charge=Charge(input_nanousd=6, cached_input_nanousd=1, output_nanousd=30),
                settle_time=noon + number,
            )
        ]
    )


def test_usage_by_tenant_and_model_names_the_tenant_and_adds_up(
    admin: TestClient, database: Database
) -> None:
    tenant_id = admin.post("/tenants", json={"name": "acme"}).json()["id"]
    for number in range(3):
        settle(database, tenant_id, number)
    settle(database, tenant_id, 3, model="big")
    usage = admin.get("/usage", params={"by": "tenant,model"}).json()
    rows = {row["model"]: row for row in usage["items"]}
    assert rows["small"]["tenant"] == "acme"
    assert rows["small"]["prompt_tokens"] == 30
    assert rows["small"]["cached_tokens"] == 12
    assert rows["small"]["completion_tokens"] == 9
    assert rows["small"]["cost"] == {"nanousd": 111, "usd": "0.000000111"}
    assert usage["total"]["requests"] == 4
    assert usage["total"]["cost"]["nanousd"] == 148


def test_usage_is_cut_by_time_and_filtered(admin: TestClient, database: Database) -> None:
    tenant_id = admin.post("/tenants", json={"name": "acme"}).json()["id"]
    for number in range(4):
        settle(database, tenant_id, number)
    query = {"since": "2026-09-21T14:13:21Z", "until": "2026-09-21T14:13:23Z", "tenant": "acme"}
    assert admin.get("/usage", params=query).json()["total"]["requests"] == 2
    nothing = admin.get("/usage", params={**query, "model": "big"}).json()
    assert nothing["items"] == []
    assert nothing["total"]["requests"] == 0


def test_a_deleted_things_usage_shows_its_id(admin: TestClient, database: Database) -> None:
    settle(database, "ten_gone", 1)
    row = admin.get("/usage", params={"by": "tenant,key"}).json()["items"][0]
    assert (row["tenant"], row["key"]) == ("ten_gone", "key_gone")


def test_an_unknown_group_is_named(admin: TestClient) -> None:
    answer = admin.get("/usage", params={"by": "tenant,colour"})
    assert answer.status_code == 400
    assert "'colour'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "when", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "1e300", "soon", "-1e9"]
)
def test_a_moment_outside_of_any_bill_is_refused(admin: TestClient, when: str) -> None:
    assert admin.get("/usage", params={"since": when}).status_code == 400
    fields = {"input_usd_per_million": "1", "output_usd_per_million": "1"}
    body = {"effective_time": when, "prices": {"small": fields}}
    assert admin.post("/prices", json=body).status_code == 400
