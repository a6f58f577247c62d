"""Tenants, projects and credit through the API."""

import pytest
from starlette.testclient import TestClient

from headrace.base.money import nanousd_per_usd


def test_a_new_tenant_is_prepaid_and_has_its_opening_credit(admin: TestClient) -> None:
    answer = admin.post("/tenants", json={"name": "acme", "credit_usd": "12.50"})
    assert answer.status_code == 201
    tenant = answer.json()
    assert tenant["postpaid"] is False
    assert tenant["credit_floor"] == {"nanousd": 0, "usd": "0.00"}
    assert tenant["balance"] == {"nanousd": 12_500_000_000, "usd": "12.50"}


def test_a_postpaid_tenant_has_no_floor(admin: TestClient) -> None:
    tenant = admin.post("/tenants", json={"name": "acme", "postpaid": True}).json()
    assert tenant["credit_floor"] is None


def test_a_repeated_credit_is_booked_once(admin: TestClient) -> None:
    admin.post("/tenants", json={"name": "acme"})
    for _ in range(3):
        body = {"amount_usd": "5", "entry_id": "invoice-1", "reason": "bank transfer"}
        answer = admin.post("/tenants/acme/credit", json=body)
    assert answer.json()["balance"]["nanousd"] == 5 * nanousd_per_usd


@pytest.mark.parametrize("amount", ["0", "-1", "nan", "inf", "1e30", "ten", "", "1,5"])
def test_an_amount_that_is_no_credit_is_named(admin: TestClient, amount: str) -> None:
    admin.post("/tenants", json={"name": "acme"})
    answer = admin.post("/tenants/acme/credit", json={"amount_usd": amount})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "amount_usd"


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "../x", "-x", "x" * 64, "ten_01m8kvbkazqfn10zbaedgan6rw", "é", "a\n"]
)
def test_a_bad_name_is_refused(admin: TestClient, name: str) -> None:
    answer = admin.post("/tenants", json={"name": name})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"


def test_a_bad_name_is_told_what_names_may_have(admin: TestClient) -> None:
    message = admin.post("/tenants", json={"name": "../x"}).json()["error"]["message"]
    assert message.startswith("name: use letters, digits, `.`, `_` and `-`")


def test_a_taken_name_is_a_conflict(admin: TestClient) -> None:
    admin.post("/tenants", json={"name": "acme"})
    assert admin.post("/tenants", json={"name": "acme"}).status_code == 409


def test_projects_of_two_tenants_may_share_a_name(admin: TestClient) -> None:
    for tenant in ("acme", "umbrella"):
        admin.post("/tenants", json={"name": tenant})
        assert admin.post("/projects", json={"tenant": tenant, "name": "web"}).status_code == 201
    ambiguous = admin.post("/keys", json={"project": "web"})
    assert ambiguous.status_code == 400
    assert "2 projects are named 'web'" in ambiguous.json()["error"]["message"]
    assert admin.post("/keys", json={"project": "umbrella/web"}).json()["tenant"] == "umbrella"
    assert admin.get("/projects/acme/web").json()["tenant"] == "acme"
    listed = admin.get("/projects", params={"tenant": "acme"}).json()["items"]
    assert [project["tenant"] for project in listed] == ["acme"]


def test_ids_and_names_name_the_same_thing(admin: TestClient) -> None:
    tenant = admin.post("/tenants", json={"name": "acme"}).json()
    assert admin.get("/tenants/acme").json() == tenant
    assert admin.get(f"/tenants/{tenant['id']}").json() == tenant


def test_an_unknown_name_is_404_and_says_what_it_looked_for(admin: TestClient) -> None:
    def told(name: str) -> str:
        answer = admin.get(f"/tenants/{name}")
        assert answer.status_code == 404
        return str(answer.json()["error"]["message"])

    assert told("nobody") == "there is no tenant named 'nobody'; none was made yet"
    for name in ("acme", "watermill"):
        admin.post("/tenants", json={"name": name})
    assert told("nobody").endswith("; there is acme, watermill")
    assert told("watermil").endswith("; did you mean watermill?")


def test_pages_cover_the_list_once(admin: TestClient) -> None:
    names = [f"tenant-{number}" for number in range(7)]
    for name in names:
        admin.post("/tenants", json={"name": name})
    seen: list[str] = []
    after = ""
    while after is not None:
        page = admin.get("/tenants", params={"limit": 3, "after": after}).json()
        assert len(page["items"]) <= 3
        seen += [tenant["name"] for tenant in page["items"]]
        after = page["next"]
    assert sorted(seen) == sorted(names)


@pytest.mark.parametrize("limit", [0, -1, 501, "many"])
def test_a_page_size_out_of_bounds_is_refused(admin: TestClient, limit: object) -> None:
    assert admin.get("/tenants", params={"limit": str(limit)}).status_code == 400


def test_a_project_caches_answers_when_it_is_told_to(admin: TestClient) -> None:
    admin.post("/tenants", json={"name": "acme"})
    made = admin.post("/projects", json={"tenant": "acme", "name": "chat"}).json()
    assert made["caches_answers"] is False
    changed = admin.patch("/projects/acme/chat", json={"caches_answers": True}).json()
    assert changed["caches_answers"] is True
    kept = admin.patch("/projects/acme/chat", json={"active": True}).json()
    assert kept["caches_answers"] is True
