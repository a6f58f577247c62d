"""Public prompts of deployments: a new look of replicas, refused where an engine shares none."""

import pytest
from starlette.testclient import TestClient

from headrace.base.errors import InvalidRequest
from headrace.control.manifest import Document, normal

rules = {"messages": [{"role": "system", "content": "Be kind."}]}
story = {"prompt": "Once"}


@pytest.fixture
def small(admin: TestClient) -> TestClient:
    """The API of a platform with a model whose tenants share a system message."""
    admin.post("/models", json={"name": "small", "source": "small.gguf"})
    answer = admin.post("/deployments", json={"model": "small", "public_prompts": [rules]})
    assert answer.status_code == 201
    assert answer.json()["public_prompts"] == [rules]
    return admin


def test_other_prompts_are_a_new_generation(small: TestClient) -> None:
    first = small.get("/deployments/small").json()["generation"]
    same = small.patch("/deployments/small", json={"public_prompts": [rules]}).json()
    assert same["generation"] == first
    changed = small.patch("/deployments/small", json={"public_prompts": [rules, story]}).json()
    assert (changed["generation"], changed["public_prompts"]) == (first + 1, [rules, story])
    kept = small.patch("/deployments/small", json={"threads": 2}).json()
    assert kept["public_prompts"] == [rules, story]
    assert (
        small.patch("/deployments/small", json={"public_prompts": []}).json()["public_prompts"]
        == []
    )


@pytest.mark.parametrize(
    "prompts",
    [
        [{}],
        [{**rules, **story}],
        [{"messages": [{"role": "system"}]}],
        [{"text": "a"}],
        [story] * 257,
        [{"prompt": "x" * 100_000}],
    ],
)
def test_what_is_no_prompt_or_too_large_is_refused(
    small: TestClient, prompts: list[dict[str, object]]
) -> None:
    answer = small.patch("/deployments/small", json={"public_prompts": prompts})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("public_prompts")


def test_an_engine_that_shares_none_is_refused_with_them(small: TestClient) -> None:
    for method, path, body in (
        ("POST", "/deployments", {"model": "small", "engine": "vllm", "public_prompts": [story]}),
        ("PATCH", "/deployments/small", {"engine": "vllm"}),
    ):
        answer = small.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "public_prompts")


def test_a_manifest_has_them_and_is_checked_alike(small: TestClient) -> None:
    exported = small.get("/manifest").json()["documents"]
    (found,) = (each for each in exported if each["kind"] == "deployment")
    assert found["spec"]["public_prompts"] == [rules]
    found["spec"]["engine"] = "vllm"
    answer = small.post("/manifest", json={"documents": [found]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "public_prompts")
    wrong = Document(kind="deployment", name="small", parent="small", spec={"public_prompts": [{}]})
    with pytest.raises(InvalidRequest, match="messages or prompt"):
        normal(wrong)
