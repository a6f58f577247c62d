"""Price books through the API."""

import pytest
from starlette.testclient import TestClient

from headrace.sim.clock import ManualClock

cheap = {"input_usd_per_million": "0.075", "output_usd_per_million": "0.30"}
dear = {"input_usd_per_million": "2", "output_usd_per_million": "5"}


def test_a_price_book_keeps_every_digit(admin: TestClient) -> None:
    fields = {"input_usd_per_million": "0.075", "output_usd_per_million": "0.30"}
    body = {"prices": {"small": {**fields, "cached_input_usd_per_million": "0"}, "big": fields}}
    book = admin.post("/prices", json=body).json()
    assert book["prices"]["small"]["input_nanousd_per_million"] == 75_000_000
    assert book["prices"]["small"]["cached_input_nanousd_per_million"] == 0
    assert book["prices"]["big"]["cached_input_usd_per_million"] == "0.075"
    assert book.pop("unknown_models") == ["big", "small"]
    assert admin.get("/prices").json()["items"] == [book]


@pytest.mark.parametrize("price", ["-1", "free", "1e20"])
def test_a_price_that_is_none_is_refused(admin: TestClient, price: str) -> None:
    fields = {"input_usd_per_million": price, "output_usd_per_million": "1"}
    assert admin.post("/prices", json={"prices": {"small": fields}}).status_code == 400


def test_whole_numbers_are_amounts_and_bare_fractions_are_asked_for_in_quotes(
    admin: TestClient,
) -> None:
    whole = {"input_usd_per_million": 2, "output_usd_per_million": "5"}
    book = admin.post("/prices", json={"prices": {"small": whole}}).json()
    assert book["prices"]["small"]["input_usd_per_million"] == "2.00"
    bare = {"input_usd_per_million": 0.1, "output_usd_per_million": True}
    answer = admin.post("/prices", json={"prices": {"small": bare}})
    assert answer.status_code == 400
    assert 'write amounts in quotes, as "0.1"' in answer.json()["error"]["message"]
    assert "output_usd_per_million" in answer.json()["error"]["message"]


def test_the_same_prices_again_are_the_same_book(admin: TestClient, clock: ManualClock) -> None:
    body = {"prices": {"small": cheap}}
    first = admin.post("/prices", json=body)
    again = admin.post("/prices", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    clock.advance(1.0)
    assert admin.post("/prices", json={"prices": {"small": dear}}).status_code == 201
    assert admin.post("/prices", json=body).status_code == 201, "prices can be taken back"


def test_a_named_book_never_changes(admin: TestClient) -> None:
    body = {"name": "2026", "prices": {"small": cheap}}
    assert admin.post("/prices", json=body).status_code == 201
    assert admin.post("/prices", json=body).status_code == 200
    answer = admin.post("/prices", json={**body, "prices": {"small": dear}})
    assert answer.status_code == 409
    assert "another name" in answer.json()["error"]["message"]


def test_a_tenants_own_prices_are_listed_for_it_alone(admin: TestClient) -> None:
    for name in ("acme", "umbra"):
        admin.post("/tenants", json={"name": name})
    admin.post("/prices", json={"name": "all", "prices": {"small": dear}})
    admin.post("/prices", json={"name": "own", "tenant": "acme", "prices": {"small": cheap}})

    def listed(tenant: str) -> list[str]:
        return [
            item["name"] for item in admin.get("/prices", params={"tenant": tenant}).json()["items"]
        ]

    assert sorted(listed("acme")) == ["all", "own"]
    assert listed("umbra") == ["all"]


def test_longer_prompts_have_prices_of_their_own(admin: TestClient) -> None:
    tier = {"over_prompt_tokens": 200_000, **dear}
    book = admin.post(
        "/prices", json={"prices": {"small": {**cheap, "context_tiers": [tier]}}}
    ).json()
    [shown] = book["prices"]["small"]["context_tiers"]
    assert shown["over_prompt_tokens"] == 200_000
    assert shown["output_nanousd_per_million"] == 5_000_000_000
    twice = {"prices": {"small": {**cheap, "context_tiers": [tier, tier]}}}
    answer = admin.post("/prices", json=twice)
    assert answer.status_code == 400
    assert "over_prompt_tokens" in answer.json()["error"]["message"]


def test_shares_by_priority_and_region_are_part_of_the_book(admin: TestClient) -> None:
    body = {
        "prices": {"small": cheap},
        "priority_percent": {"interactive": 150},
        "region_percent": {"eu": 110},
    }
    book = admin.post("/prices", json=body).json()
    assert (book["priority_percent"], book["region_percent"]) == ({"interactive": 150}, {"eu": 110})
    assert admin.post("/prices", json=body).status_code == 200
    assert admin.post("/prices", json={"prices": {"small": cheap}}).status_code == 201
    wrong = {**body, "priority_percent": {"urgent": 150}}
    assert admin.post("/prices", json=wrong).status_code == 400


def test_prices_of_another_currency_become_dollars_at_the_rate_that_is_said(
    admin: TestClient,
) -> None:
    body = {"prices": {"small": dear}, "currency": "EUR", "usd_per_unit": "1.08"}
    book = admin.post("/prices", json=body).json()
    assert book["prices"]["small"]["input_usd_per_million"] == "2.16"
    assert (book["currency"], book["usd_per_unit"]) == ("EUR", "1.08")
    answer = admin.post("/prices", json={**body, "usd_per_unit": None})
    assert answer.status_code == 400
    assert "usd_per_unit" in answer.json()["error"]["message"]


def test_what_is_not_sold_by_token_needs_no_price_of_tokens(admin: TestClient) -> None:
    units = {"usd_per_image": "0.04", "usd_per_character": "0.000015"}
    answer = admin.post("/prices", json={"prices": {"painter": units}})
    assert answer.status_code == 201, answer.text
    price = answer.json()["prices"]["painter"]
    assert (price["usd_per_image"], price["usd_per_character"]) == ("0.04", "0.000015")
    assert (price["usd_per_second"], price["input_nanousd_per_million"]) == (None, 0)


@pytest.mark.parametrize(
    "fields",
    [{}, {"usd_per_image": "-1"}, {"usd_per_second": "2000"}, {"usd_per_request": "1e-12"}],
)
def test_a_price_by_no_unit_or_no_amount_is_refused(
    admin: TestClient, fields: dict[str, str]
) -> None:
    assert admin.post("/prices", json={"prices": {"small": fields}}).status_code == 400
