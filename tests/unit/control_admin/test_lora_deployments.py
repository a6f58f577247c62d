"""LoRA adapters of deployments: a new look of replicas, refused where an engine gets none."""

import pytest
from starlette.testclient import TestClient

from headrace.base.errors import InvalidRequest
from headrace.control.manifest import Document, normal

sql = {"name": "sql", "source": "/adapters/sql"}
tone = {"name": "tone", "source": "hf://owner/tone"}


@pytest.fixture
def small(admin: TestClient) -> TestClient:
    """The API of a platform with a model that has an adapter."""
    admin.post("/models", json={"name": "small", "source": "small.gguf"})
    answer = admin.post("/deployments", json={"model": "small", "loras": [sql]})
    assert answer.status_code == 201
    assert answer.json()["loras"] == {"sql": "/adapters/sql"}
    return admin


def test_other_adapters_are_a_new_generation(small: TestClient) -> None:
    first = small.get("/deployments/small").json()["generation"]
    same = small.patch("/deployments/small", json={"loras": [sql]}).json()
    assert same["generation"] == first
    changed = small.patch("/deployments/small", json={"loras": [sql, tone]}).json()
    assert changed["generation"] == first + 1
    assert changed["loras"] == {"sql": "/adapters/sql", "tone": "hf://owner/tone"}
    kept = small.patch("/deployments/small", json={"threads": 2}).json()
    assert kept["loras"] == changed["loras"]
    assert small.patch("/deployments/small", json={"loras": []}).json()["loras"] == {}


@pytest.mark.parametrize(
    "loras",
    [
        [sql, sql],
        [{"name": "a:b", "source": "/a"}],
        [{"name": "a", "source": ""}],
        [{"name": "a"}],
        [{"name": f"a{number}", "source": "/a"} for number in range(65)],
    ],
)
def test_adapters_that_could_not_be_asked_for_are_refused(
    small: TestClient, loras: list[dict[str, str]]
) -> None:
    answer = small.patch("/deployments/small", json={"loras": loras})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("loras")


def test_an_engine_that_is_given_none_is_refused_with_them(small: TestClient) -> None:
    for method, path, body in (
        ("POST", "/deployments", {"model": "small", "engine": "tgi", "loras": [sql]}),
        ("PATCH", "/deployments/small", {"engine": "tgi"}),
    ):
        answer = small.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "loras")
    moved = small.patch("/deployments/small", json={"engine": "tgi", "loras": []})
    assert (moved.status_code, moved.json()["engine"]) == (200, "tgi")


def test_a_manifest_has_adapters_by_the_same_rules() -> None:
    def spec_of(*loras: dict[str, str]) -> object:
        spec: dict[str, object] = {"version": "v1", "loras": [*loras]}
        return normal(Document(kind="deployment", name="x", parent="small", spec=spec)).spec

    assert spec_of(sql, tone) != spec_of(sql)
    with pytest.raises(InvalidRequest, match="loras"):
        spec_of({"name": "a:b", "source": "/a"})
