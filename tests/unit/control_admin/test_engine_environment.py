"""Variables of engines: part of what replicas look like, and never a place for secrets."""

import pytest
from starlette.testclient import TestClient

from headrace.base.errors import InvalidRequest
from headrace.control.engine_environment import check_environment


@pytest.fixture
def small(admin: TestClient) -> TestClient:
    """The API of a platform with a deployment."""
    admin.post("/models", json={"name": "small", "source": "small.gguf"})
    answer = admin.post("/deployments", json={"model": "small", "environment": {"A": "1"}})
    assert answer.json()["environment"] == {"A": "1"}
    return admin


def test_other_variables_are_a_new_generation(small: TestClient) -> None:
    changed = small.patch("/deployments/small", json={"environment": {"VLLM_LOGGING_LEVEL": "x"}})
    kept = small.patch("/deployments/small", json={"replicas": 2}).json()

    assert changed.json()["generation"] == 2
    assert (kept["generation"], kept["environment"]) == (2, {"VLLM_LOGGING_LEVEL": "x"})
    assert small.patch("/deployments/small", json={"environment": {}}).json()["environment"] == {}


@pytest.mark.parametrize(
    "variables",
    [{"A-B": "1"}, {"": "1"}, {"HF_TOKEN": "x"}, {"my_api_key": "x"}, {"A": "a\0b"}],
)
def test_what_is_no_variable_or_says_it_is_a_secret_is_refused(
    small: TestClient, variables: dict[str, str]
) -> None:
    answer = small.patch("/deployments/small", json={"environment": variables})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "environment")


@pytest.mark.parametrize("variables", [{"A": "x" * 5000}, {f"A{n}": "" for n in range(65)}])
def test_variables_are_bounded(variables: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        check_environment(variables)
