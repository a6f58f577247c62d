"""Lists that grow come in pages, each of which goes on where the one before ended."""

from fastapi.testclient import TestClient

from headrace.spec.payments import Payment, PaymentPurpose
from headrace.storage import Database


def every_page(admin: TestClient, path: str, size: int) -> list[list[dict[str, object]]]:
    """The pages of a list."""
    mark = "&" if "?" in path else "?"
    pages: list[list[dict[str, object]]] = []
    after = ""
    while True:
        answer = admin.get(f"{path}{mark}limit={size}&after={after}")
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["items"])
        after = answer.json()["next"]
        if after is None:
            return pages


def test_nodes_come_in_pages(admin: TestClient) -> None:
    names = [f"gpu{number}" for number in range(5)]
    for name in names:
        assert admin.post("/nodes", json={"name": name}).status_code == 201
    pages = every_page(admin, "/nodes", 2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(str(node["name"]) for page in pages for node in page) == names
    assert "frozen_reason" in admin.get("/nodes?limit=1").json()


def test_prices_of_devices_come_in_pages(admin: TestClient) -> None:
    for price in ("1", "2", "3"):
        fields = {"prices": {"H200": {"usd_per_hour": price}}}
        assert admin.post("/device-prices", json=fields).status_code == 201
    pages = every_page(admin, "/device-prices", 2)
    assert [len(page) for page in pages] == [2, 1]
    assert len({str(book["id"]) for page in pages for book in page}) == 3


def test_payments_come_in_pages(admin: TestClient, database: Database) -> None:
    for tenant in ("acme", "bolt"):
        admin.post("/tenants", json={"name": tenant})
    acme, bolt = (item["id"] for item in admin.get("/tenants").json()["items"])
    for number in range(5):
        payment = Payment(
            id=f"pay_{number}",
            name=f"pay_{number}",
            parent_id=bolt if number == 1 else acme,
            create_time=0.0,
            purpose=PaymentPurpose.RECHARGE,
            provider="stripe",
            currency="USD",
            amount_units=100,
            credit_nanousd=10**9,
        )
        database.store.create(payment)
    pages = every_page(admin, "/payments", 2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [item["id"] for page in pages for item in page] == [f"pay_{n}" for n in range(5)]
    pages = every_page(admin, f"/payments?tenant={acme}", 3)
    assert [[item["id"] for item in page] for page in pages] == [
        ["pay_0", "pay_2", "pay_3"],
        ["pay_4"],
    ]


def test_limits_come_in_pages_and_none_twice(admin: TestClient) -> None:
    limited = {"limits": {"requests_per_minute": 5}}
    for tenant in ("acme", "bolt"):
        admin.post("/tenants", json={"name": tenant, **limited})
        admin.post("/projects", json={"tenant": tenant, "name": "web", **limited})
        admin.post("/projects", json={"tenant": tenant, "name": "free"})
        for key in ("a", "b"):
            body = {"project": f"{tenant}/web", "name": key, **limited}
            assert admin.post("/keys", json=body).status_code == 201
    (whole,) = every_page(admin, "/limits", 100)
    kinds = [item["kind"] for item in whole]
    assert kinds == ["tenant"] * 2 + ["project"] * 2 + ["key"] * 4
    for size in (1, 3, 4):
        pages = every_page(admin, "/limits", size)
        assert [item for page in pages for item in page] == whole
        assert max(map(len, pages)) <= size
    (bolt,) = every_page(admin, "/limits?tenant=bolt", 100)
    assert [item["tenant"] for item in bolt] == ["bolt"] * 4


def test_a_page_of_limits_goes_on_though_its_last_key_is_gone(admin: TestClient) -> None:
    limited = {"limits": {"requests_per_minute": 5}}
    admin.post("/tenants", json={"name": "acme"})
    admin.post("/projects", json={"tenant": "acme", "name": "web"})
    for name in ("a", "b", "c"):
        admin.post("/keys", json={"project": "acme/web", "name": name, **limited})
    whole = admin.get("/limits").json()["items"]
    first = admin.get("/limits?limit=2").json()
    assert first["next"] == whole[1]["id"]
    assert admin.post(f"/keys/{first['next']}/revoke", json={}).status_code == 200
    rest = admin.get(f"/limits?limit=2&after={first['next']}").json()
    assert (rest["items"], rest["next"]) == (whole[2:], None)


def test_what_is_no_place_in_the_list_is_refused(admin: TestClient) -> None:
    for wrong in ("after=nod_1", "after=x", "limit=0", "limit=501"):
        assert admin.get(f"/limits?{wrong}").status_code == 400, wrong
