"""What a deployment marks public is shared by all tenants, and nothing else of a prompt is."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import ReplicaState

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
block_size_tokens = 16
rules = {"role": "system", "content": "You answer in one short sentence, politely. " * 8}


def ask(url: str, key: str, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=110)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def post(url: str, key: str, path: str, **fields: Any) -> Any:
    status, text = ask(url, key, "POST", path, json.dumps({"model": model, **fields}).encode())
    assert status == 200, text
    return json.loads(text)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with PlatformProcess.start(tmp_path_factory.mktemp("up"), "--demo") as started:
        for tenant in ("acme", "umbrella"):
            started.admin("POST", "/tenants", name=tenant, postpaid=True)
            started.admin("POST", "/projects", tenant=tenant, name=f"{tenant}-web")
        started.admin("PATCH", f"/deployments/{model}", public_prompts=[{"messages": [rules]}])
        wait_until(lambda: is_rolled_out(started))
        yield started


def is_rolled_out(platform: PlatformProcess) -> bool:
    replicas = platform.replicas()
    return [(each.generation, each.state) for each in replicas] == [(2, ReplicaState.ACTIVE)]


def test_two_tenants_share_the_public_part_alone(platform: PlatformProcess) -> None:
    keys = {
        tenant: platform.admin("POST", "/keys", project=f"{tenant}-web")["key"]
        for tenant in ("acme", "umbrella")
    }
    url = platform.gateway_url
    wait_until(
        lambda: all(ask(url, key, "GET", "/v1/models", None)[0] == 200 for key in keys.values())
    )
    messages = [rules, {"role": "user", "content": "Our secret plan is about the river. " * 8}]

    def cached(tenant: str) -> int:
        path = "/v1/chat/completions"
        answer = post(url, keys[tenant], path, messages=messages, max_tokens=1)
        count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    (replica,) = platform.replicas()
    tokens = post(replica.address, platform.engine_key(replica), "/tokenize", messages=messages)
    public = tokens["public_count"] // block_size_tokens * block_size_tokens
    assert 3 * block_size_tokens <= public < tokens["count"] - 3 * block_size_tokens
    assert cached("acme") == 0
    assert cached("umbrella") == public
    assert cached("acme") > public + 2 * block_size_tokens
    assert cached("umbrella") > public + 2 * block_size_tokens  # of what it has sent itself
