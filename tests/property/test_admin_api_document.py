"""Requests made up from the API's own document: no 5xx, no traceback, no secret anywhere."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from headrace.control.admin import create_admin_app
from headrace.control.admin.app import build_api
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Replica

pytestmark = pytest.mark.filterwarnings("default")  # schemathesis' own; ours are errors elsewhere
token = "canary-admin-token-of-many-characters"
pepper = b"canary-pepper-canary-pepper-0123"
engine_key = "canary-engine-key"
password = "canary-password-of-ada"
examples_per_operation = 3


class Site:
    """An admin API with secrets in it, and the texts that must never be seen again."""

    def __init__(self, directory: Path) -> None:
        clock = ManualClock()
        self.database = open_sqlite_copy(directory / "headrace.db", clock)
        closing = asyncio.Event()
        closing.set()  # so that streams end
        app = create_admin_app(self.database, token, pepper=pepper, clock=clock, closing=closing)
        self.document: dict[str, Any] = build_api().openapi()
        self.client = TestClient(
            app,
            base_url="http://127.0.0.1:8081",
            headers={"authorization": f"Bearer {token}"},
            raise_server_exceptions=False,
        )
        self.post("/tenants", {"name": "acme"})
        self.post("/projects", {"tenant": "acme", "name": "web"})
        self.key = self.post("/keys", {"project": "web", "name": "ci"})["key"]
        robot = {"tenant": "acme", "name": "robot", "role": "admin"}
        self.service_token = self.post("/service-accounts", robot)["token"]
        self.post("/users", {"login": "ada", "password": password})
        hook = self.post("/webhooks", {"url": "https://hooks.example/x", "tenant": "acme"})
        self.database.store.create(
            Replica(id="rep_1", name="r", parent_id="dep_1", create_time=0.0, engine_key=engine_key)
        )
        self.secrets = (
            token,
            pepper.decode(),
            engine_key,
            password,
            self.key.rpartition("_")[2],
            self.service_token.rpartition("_")[2],
            hook["secret"],
            "$argon2id$",
            "Traceback (most",
        )

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(f"/admin/v1{path}", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def check(self, status: int, text: str, what: object) -> None:
        assert status < 500 or status == 503, (what, text)  # 503: a part that is not there
        for secret in self.secrets:
            assert secret not in text, what


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged by anything but the test's own client."""
    own = ("httpx2", "asyncio", "schemathesis")
    return "".join(
        f"{record.getMessage()} {record.exc_text or ''}"
        for record in caplog.records
        if not record.name.startswith(own)
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("document"))
    yield made
    made.database.close()


def test_requests_of_the_document_are_answered_in_order(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    result = pytest.importorskip("schemathesis.core.result")
    caplog.set_level(logging.DEBUG)
    schema = schemathesis.openapi.from_dict(site.document)
    found = list(schema.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, result.Ok)]
    assert len(operations) == len(found) > 50
    for operation in operations:

        @settings(
            max_examples=examples_per_operation,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            has_body = isinstance(case.body, dict | list | str | int)
            answer = site.client.request(
                case.method,
                case.formatted_path,
                params=dict(case.query or {}),
                follow_redirects=False,
                json=case.body if has_body else None,
            )
            # What a request makes may be shown in its own answer.
            is_new = answer.status_code == 201
            site.check(answer.status_code, "" if is_new else answer.text, case.formatted_path)

        ask()
    for secret in site.secrets:
        assert secret not in logged(caplog)


def test_secrets_in_odd_places_are_not_repeated(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for secret in (site.key, site.service_token):
        for headers in (
            {"authorization": f"Bearer {secret}x"},
            {"authorization": f"Basic {secret}"},
            {"cookie": f"headrace_console={secret}", "authorization": ""},
            {"host": secret},
            {"x-headrace-console": secret},
        ):
            answer = site.client.get("/admin/v1/tenants", headers=headers)
            site.check(answer.status_code, answer.text, headers.keys())
        for path in (f"/keys/{secret}", f"/keys/{secret}/revoke", f"/{secret}"):
            for method in ("GET", "POST", "PATCH", "DELETE"):
                answer = site.client.request(method, f"/admin/v1{path}", json={})
                site.check(answer.status_code, answer.text, (method, path))
        for body in ({"project": secret}, {"project": "web", "name": secret}, {secret: secret}):
            answer = site.client.post("/admin/v1/keys", json=body)
            site.check(answer.status_code, answer.text, body.keys())
        answer = site.client.get("/admin/v1/usage", params={"by": secret, "key": secret})
        site.check(answer.status_code, answer.text, "usage")
    for secret in site.secrets:
        assert secret not in logged(caplog)
        assert secret not in site.client.get("/admin/v1/audit").text
