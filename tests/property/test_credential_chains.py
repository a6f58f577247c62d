"""Random credentials make random credentials through the API; none ever exceeds the first."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.control.admin import create_admin_app
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.accounts import ServiceAccount
from headrace.spec.roles import Role
from headrace.spec.tenancy import ApiKey
from headrace.storage import Database

token = "an-admin-token-of-30-characters"
models, endpoints = ("small", "big", "huge"), ("chat", "embeddings", "files")


def some(names: tuple[str, ...]) -> st.SearchStrategy[list[str] | None]:
    return st.none() | st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)


asked = st.fixed_dictionaries(
    {
        "role": st.sampled_from([role.value for role in Role]),
        "projects": st.none() | some(("web", "batch")),
        "models": some(models),
        "endpoints": some(endpoints),
    }
)


@dataclass(frozen=True)
class Site:
    app: ASGIApp
    database: Database

    def client(self, presented: str) -> TestClient:
        return TestClient(
            self.app,
            base_url="http://127.0.0.1:8081/admin/v1",
            headers={"authorization": f"Bearer {presented}"},
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path: Path = tmp_path_factory.mktemp("chains") / "headrace.db"
    database = open_sqlite_copy(path)
    made = Site(create_admin_app(database, token, pepper=b"p" * 32), database)
    admin = made.client(token)
    admin.post("/tenants", json={"name": "acme"})
    for project in ("web", "batch"):
        admin.post("/projects", json={"tenant": "acme", "name": project})
    for model in models:
        admin.post("/models", json={"name": model, "source": f"{model}.gguf"})
    yield made
    database.close()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=st.lists(asked, min_size=2, max_size=4), keys=st.lists(asked, min_size=1, max_size=2))
def test_no_descendant_exceeds_its_ancestors(
    site: Site, chain: list[dict[str, object]], keys: list[dict[str, object]]
) -> None:
    presented = token
    ancestors: list[ServiceAccount] = []
    for number, wanted in enumerate(chain):
        name = f"robot-{len(site.database.store.list(ServiceAccount))}-{number}"
        body = {"tenant": "acme", "name": name, **wanted}
        answer = site.client(presented).post("/service-accounts", json=body)
        if answer.status_code != 201:
            assert answer.status_code in (400, 403), answer.text
            break
        made = site.database.store.get(ServiceAccount, answer.json()["id"])
        for ancestor in ancestors:
            assert made.scope.within(ancestor.scope)
        ancestors.append(made)
        presented = answer.json()["token"]
    for wanted in keys:
        for project in ("web", "batch"):
            body = {"project": project, **wanted}
            del body["role"], body["projects"]
            answer = site.client(presented).post("/keys", json=body)
            if answer.status_code != 201:
                continue
            key = site.database.store.get(ApiKey, answer.json()["id"])
            for ancestor in ancestors:
                scope = ancestor.scope
                assert scope.reaches_project(key.parent_id)
                assert scope.models is None or set(key.models or models) <= scope.models
                assert scope.endpoints is None or set(key.endpoints or endpoints) <= scope.endpoints
