"""Whatever is sent to the admin API, the answer is a success or the caller's error, never a 5xx."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from headrace.control.admin import create_admin_app
from headrace.sim.sqlite_copy import open_sqlite_copy

token = "an-admin-token-of-30-characters"
canary = "canary-pepper-canary-pepper-0123"

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=40),
    st.sampled_from(
        ["acme", "1e400", "-0", "0.000000001", "99999999999999999999", "NaN", "\u0000"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
fields = (
    "name", "tenant", "project", "amount_usd", "reason", "entry_id", "models", "expires_in_s",
    "source", "sha256", "context_length", "model", "version", "engine", "replicas", "threads",
    "engine_arguments", "prices", "effective_time", "postpaid", "credit_floor_usd", "credit_usd",
    "activate",
)  # fmt: skip
bodies = st.dictionaries(st.sampled_from(fields), values, max_size=6) | values
writes = (
    "/tenants", "/tenants/acme/credit", "/projects", "/keys", "/models", "/versions",
    "/deployments", "/prices",
)  # fmt: skip
reads = ("/tenants", "/projects", "/keys", "/models", "/versions", "/deployments", "/replicas",
         "/prices", "/usage")  # fmt: skip
queries = (
    "limit",
    "after",
    "tenant",
    "project",
    "model",
    "deployment",
    "by",
    "since",
    "until",
    "key",
)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path: Path = tmp_path_factory.mktemp("fuzz") / "headrace.db"
    database = open_sqlite_copy(path)
    closing = asyncio.Event()
    closing.set()  # so that streams end
    client = TestClient(
        create_admin_app(database, token, pepper=canary.encode(), closing=closing),
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": f"Bearer {token}"},
        raise_server_exceptions=False,
    )
    client.post("/tenants", json={"name": "acme"})
    yield client
    database.close()


calm = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@calm
@given(path=st.sampled_from(writes), body=bodies)
def test_no_body_breaks_a_write(admin: TestClient, path: str, body: object) -> None:
    try:
        answer = admin.post(path, json=body)
    except ValueError:
        return  # the client itself can't write this as JSON
    check(answer.status_code, answer.text)


@calm
@given(path=st.sampled_from(writes), content=st.binary(max_size=200))
def test_no_bytes_break_a_write(admin: TestClient, path: str, content: bytes) -> None:
    answer = admin.post(path, content=content, headers={"content-type": "application/json"})
    check(answer.status_code, answer.text)


@calm
@given(
    path=st.sampled_from(reads),
    query=st.dictionaries(st.sampled_from(queries), st.text(max_size=30), max_size=4),
)
def test_no_query_breaks_a_read(admin: TestClient, path: str, query: dict[str, str]) -> None:
    answer = admin.get(path, params=query)
    check(answer.status_code, answer.text)


@calm
@given(path=st.sampled_from(reads), name=st.text(min_size=1, max_size=40))
def test_no_name_breaks_a_route(admin: TestClient, path: str, name: str) -> None:
    try:
        encoded = quote(name, safe="")
    except UnicodeEncodeError:
        return  # half a surrogate pair can't be in an address
    for method in ("GET", "PATCH", "DELETE"):
        answer = admin.request(method, f"{path}/{encoded}", json={"replicas": 1})
        check(answer.status_code, answer.text)


def check(status: int, text: str) -> None:
    assert status < 500, text
    assert canary not in text
    assert "Traceback" not in text
