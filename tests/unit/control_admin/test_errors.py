"""One error shape for everything that can go wrong, with nothing in it that should stay inside."""

import logging

import pytest
from starlette.testclient import TestClient

from headrace.base.errors import Unavailable
from headrace.control.admin.app import body_bytes_max
from headrace.storage import Database, Store


def test_a_body_that_is_not_json_is_explained(admin: TestClient) -> None:
    headers = {"content-type": "application/json"}
    answer = admin.post("/tenants", content=b"{bad", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the body is not JSON")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tenants", {"nmae": "a", "name": "a"}, "nmae: there is no such field here"),
        ("/tenants", {}, "name: this field is needed"),
        ("/tenants", {"name": 7}, "name: text is expected; put it in quotes"),
        ("/invoices", {"month": "2026-13"}, "month: a month is written as 2026-11"),
        ("/tenants", {"name": "-a"}, "name: use letters"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_in_words(
    admin: TestClient, path: str, body: dict[str, object], words: str
) -> None:
    answer = admin.post(path, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused(admin: TestClient, declared: bool) -> None:
    body = b" " * (body_bytes_max + 1)
    content = body if declared else iter([body[: 1 << 16], body[1 << 16 :]])
    answer = admin.post("/tenants", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"


def test_an_unknown_path_and_a_wrong_method_have_the_same_shape(admin: TestClient) -> None:
    assert admin.get("/nope").json()["error"]["code"] == "not_found"
    wrong = admin.put("/tenants")
    assert wrong.status_code == 405
    assert wrong.headers["allow"]
    assert wrong.json()["error"]["message"].startswith("this path does not take that method")


def test_a_retryable_error_says_when(admin: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(_: Store) -> int:
        raise Unavailable("the disk is full; free some space", retry_after_s=3.2)

    monkeypatch.setattr(Store, "revision", busy)
    answer = admin.get("/status")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"


def test_an_unforeseen_error_is_logged_and_not_shown(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Store) -> int:
        raise ValueError("canary-inside")

    monkeypatch.setattr(Store, "revision", broken)
    with caplog.at_level(logging.ERROR):
        answer = admin.get("/status")
    assert answer.status_code == 500
    assert "canary-inside" not in answer.text
    assert answer.json()["error"]["code"] == "internal_error"
    assert "canary-inside" in caplog.text


def test_a_refused_value_is_not_repeated(admin: TestClient, database: Database) -> None:
    answer = admin.post("/tenants", json={"name": "canary secret value"})
    assert answer.status_code == 400
    assert "canary" not in answer.text


def test_the_schema_describes_the_routes(admin: TestClient) -> None:
    paths = admin.get("/openapi.json").json()["paths"]
    assert "/admin/v1/tenants/{tenant}/credit" in paths
