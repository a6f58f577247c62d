"""How tenants are billed, all in one answer; what a change of the seller has to repeat."""

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.control.admin import create_admin_app
from headrace.control.payments.provider import Answer, ChargeOrder, RefundOrder, Verdict
from headrace.sim.clock import ManualClock
from headrace.storage import Database


class Provider:
    """Takes any money."""

    name = "stripe"

    def charge(self, order: ChargeOrder) -> Answer:
        return Answer(Verdict.SUCCEEDED, order.idempotency_key)

    def refund(self, order: RefundOrder) -> Answer:
        return Answer(Verdict.SUCCEEDED, order.idempotency_key)


@pytest.fixture
def paid_admin(database: Database, clock: ManualClock, admin_token: str) -> TestClient:
    app = create_admin_app(
        database, admin_token, pepper=b"p" * 32, clock=clock, payment_provider=Provider()
    )
    return client(app, admin_token)


def client(app: ASGIApp, token: str) -> TestClient:
    return TestClient(
        app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": f"Bearer {token}"},
    )


def test_each_tenant_has_its_own_terms_or_everybodys(
    paid_admin: TestClient, clock: ManualClock
) -> None:
    for name in ("acme", "other", "third"):
        clock.advance(1.0)  # ids sort by it
        paid_admin.post("/tenants", json={"name": name})
    assert all(row["terms"] is None for row in paid_admin.get("/billing").json()["items"])
    paid_admin.put("/terms", json={"discount_percent": 2})
    paid_admin.put(
        "/tenants/acme/terms",
        json={
            "minimum_usd": "500",
            "free_tokens": {"small": 1000},
            "volume": [{"over_usd": "1000", "percent": 5}],
        },
    )
    paid_admin.put(
        "/tenants/acme/billing-profile",
        json={"name": "Acme Ltd", "country": "IE", "currency": "EUR"},
    )
    paid_admin.put(
        "/tenants/other/payment-agreement",
        json={"customer": "cus_1", "recharge": {"below_usd": "5", "amount_usd": "20"}},
    )
    page = paid_admin.get("/billing", params={"limit": 2}).json()
    acme, other = page["items"]
    assert acme["terms"]["tenant_id"] == acme["tenant_id"]
    assert acme["terms"]["minimum"]["usd"] == "500.00"
    assert acme["terms"]["volume"] == [
        {"over": {"nanousd": 10**12, "usd": "1000.00"}, "percent": 5.0}
    ]
    assert (acme["profile"]["party"]["name"], acme["profile"]["currency"]) == ("Acme Ltd", "EUR")
    assert acme["agreement"] is None
    assert other["terms"]["tenant_id"] is None
    assert other["terms"]["discount_percent"] == 2.0
    assert other["agreement"]["recharge"]["amount"]["usd"] == "20.00"
    rest = paid_admin.get("/billing", params={"after": page["next"]}).json()
    assert [row["tenant"] for row in rest["items"]] == ["third"]
    assert rest["next"] is None


def test_what_is_shown_of_the_seller_can_be_sent_back(admin: TestClient) -> None:
    said = {
        "name": "Mill GmbH",
        "address": ["Am Wehr 1", "Ulm"],
        "country": "DE",
        "tax_id": "DE1",
        "email": "",
        "number_prefix": "MILL",
        "taxes": [
            {
                "name": "VAT 19%",
                "percent": 19.0,
                "countries": ["DE"],
                "without_tax_id_only": False,
                "note": "",
            },
            {
                "name": "Reverse charge",
                "percent": 0.0,
                "countries": None,
                "without_tax_id_only": True,
                "note": "The recipient owes the tax.",
            },
        ],
        "payment_days": 30,
        "payment_note": "IBAN",
        "exchange_rates": {"EUR": "0.92"},
        "font_path": "",
    }
    admin.put("/seller", json=said)
    shown = admin.get("/seller").json()
    again = {**shown.pop("party"), **{k: v for k, v in shown.items() if k != "id"}}
    assert again == said
    assert admin.put("/seller", json=again).status_code == 200


def test_whether_there_is_a_payment_provider_is_said(
    admin: TestClient, paid_admin: TestClient
) -> None:
    assert admin.get("/status").json()["payment_provider"] is None
    assert paid_admin.get("/status").json()["payment_provider"] == "stripe"
