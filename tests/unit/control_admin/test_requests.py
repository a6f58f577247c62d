"""Settled requests one by one: newest first, in pages, and nobody else's."""

import pytest
from starlette.testclient import TestClient

from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.storage import Database

noon = 1_790_000_000.0  # 2026-09-21 UTC


def settle(
    database: Database, tenant_id: str, number: int, *, time_s: float = noon, rated: bool = True
) -> None:
    database.ledger.post(
        [
            Settlement(
                request_id=f"req-{number}",
                tenant_id=tenant_id,
                project_id="prj_1",
                key_id="key_1",
                model="small",
                usage=TokenUsage(prompt_tokens=10, cached_tokens=4, completion_tokens=number),
                outcome=Outcome.FINISHED if number else Outcome.ABORTED,
                source=UsageSource.ENGINE,
                price_book_id="prb_1" if rated else None,
                charge=Charge(input_nanousd=6, cached_input_nanousd=1, output_nanousd=30)
                if rated
                else None,
                settle_time=time_s,
            )
        ]
    )


def test_pages_give_every_request_once_the_newest_first(
    admin: TestClient, database: Database
) -> None:
    tenant_id = admin.post("/tenants", json={"name": "acme"}).json()["id"]
    for number in range(5):
        settle(database, tenant_id, number, time_s=noon + number // 2)  # some at one moment
    seen: list[str] = []
    after = ""
    while True:
        page = admin.get("/requests", params={"limit": 2, "after": after}).json()
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == ["req-4", "req-3", "req-2", "req-1", "req-0"]


def test_a_row_says_what_was_used_by_whom_and_what_it_cost(
    admin: TestClient, database: Database
) -> None:
    tenant_id = admin.post("/tenants", json={"name": "acme"}).json()["id"]
    settle(database, tenant_id, 3)
    settle(database, tenant_id, 4, rated=False, time_s=noon + 1)
    unrated, rated = admin.get("/requests").json()["items"]
    assert (rated["tenant"], rated["model"], rated["completion_tokens"]) == ("acme", "small", 3)
    assert rated["cost"]["nanousd"] == 37
    assert unrated["cost"] is None


def test_filters_are_those_of_usage_and_the_outcome(admin: TestClient, database: Database) -> None:
    ids = [admin.post("/tenants", json={"name": name}).json()["id"] for name in ("acme", "other")]
    for number, tenant_id in enumerate((ids[0], ids[0], ids[1])):
        settle(database, tenant_id, number)

    def found(**query: str) -> list[str]:
        items = admin.get("/requests", params=query).json()["items"]
        return sorted(item["id"] for item in items)

    assert found(tenant="acme") == ["req-0", "req-1"]
    assert found(outcome="aborted") == ["req-0"]
    assert found(tenant="other", outcome="aborted") == []
    assert found(model="big") == []
    assert found(since="2026-09-22") == []


@pytest.mark.parametrize("after", ["yesterday", "x y"])
def test_a_place_that_no_page_named_is_refused(admin: TestClient, after: str) -> None:
    assert admin.get("/requests", params={"after": after}).status_code == 400


def test_who_writes_the_invoices_is_shown_once_it_is_known(admin: TestClient) -> None:
    assert admin.get("/seller").status_code == 409
    admin.put("/seller", json={"name": "Mill GmbH"})
    assert admin.get("/seller").json()["party"]["name"] == "Mill GmbH"


def test_a_class_that_nobody_counted_is_null_in_its_row_and_what_was_counted_is_summed(
    admin: TestClient, database: Database
) -> None:
    tenant_id = admin.post("/tenants", json={"name": "acme"}).json()["id"]
    settle(database, tenant_id, 3)
    database.ledger.post(
        [
            Settlement(
                request_id="req-detailed",
                tenant_id=tenant_id,
                project_id="prj_1",
                key_id="key_1",
                model="small",
                usage=TokenUsage(10, 4, 8, reasoning_tokens=0, draft_tokens=5, image_tokens=6),
                outcome=Outcome.FINISHED,
                source=UsageSource.ENGINE,
                price_book_id="prb_1",
                charge=Charge(output_nanousd=5),
                settle_time=noon + 1,
                price_percent=50,
            )
        ]
    )
    detailed, plain = admin.get("/requests").json()["items"]
    names = ("reasoning_tokens", "draft_tokens", "embedding_tokens", "image_tokens")
    assert [detailed[name] for name in names] == [0, 5, None, 6]
    assert [plain[name] for name in names] == [None, None, None, None]
    assert (detailed["price_percent"], plain["price_percent"]) == (50, 100)
    total = admin.get("/usage").json()["total"]
    assert [total[name] for name in names] == [0, 5, 0, 6]
