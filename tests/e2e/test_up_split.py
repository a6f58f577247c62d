"""A platform of one replica for prompts and one that answers: the same answers, and none lost."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import Replica, ReplicaState
from headrace.spec.disaggregation import ReplicaRole
from headrace.storage import open_sqlite

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
policy = {"prefill": 1, "decode": 1, "threshold_tokens": 100}
places = "Paris, London, Rome, Berlin, Madrid, Vienna, Prague, Oslo, Athens and Lisbon"


def call(
    url: str, key: str, method: str, path: str, body: object = None
) -> tuple[Any, http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, text
    return (json.loads(text) if text[:1] == b"{" else text.decode()), answer


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    directory = tmp_path_factory.mktemp("up")
    with PlatformProcess.start(directory, "--demo") as started:
        started.admin("PATCH", f"/deployments/{model}", disaggregation=policy)
        wait_until(lambda: is_split(started))
        yield started


def is_split(platform: PlatformProcess) -> bool:
    replicas = platform.replicas()
    return sorted((each.role, each.state, each.generation) for each in replicas) == [
        (ReplicaRole.DECODE, ReplicaState.ACTIVE, 2),
        (ReplicaRole.PREFILL, ReplicaState.ACTIVE, 2),
    ]


def replica_of(platform: PlatformProcess, role: ReplicaRole) -> Replica:
    (found,) = (replica for replica in platform.replicas() if replica.role is role)
    return found


def metric(platform: PlatformProcess, replica: Replica, name: str) -> float:
    text, _ = call(replica.address, platform.engine_key(replica), "GET", "/metrics")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def settlement_count(platform: PlatformProcess) -> int:
    database = open_sqlite(platform.data_dir / "headrace.db")
    try:
        return database.ledger.settlement_count()
    finally:
        database.close()


def chat(number: int, **fields: Any) -> dict[str, Any]:
    text = f"{number}. Which of these is in Italy? {places}. " * 8
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 8, "seed": number, **fields}


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (1, {"temperature": 0}),
        (2, {"temperature": 1.2, "frequency_penalty": 0.5, "logprobs": True, "top_logprobs": 3}),
        (3, {"guided_regex": "[a-z]{3,12}[.]"}),
    ],
    ids=["greedy", "penalties and log-probabilities", "grammar"],
)
def test_a_split_answer_is_that_of_one_replica_and_is_billed_once(
    platform: PlatformProcess, number: int, fields: dict[str, Any]
) -> None:
    first, second = (
        replica_of(platform, role) for role in (ReplicaRole.PREFILL, ReplicaRole.DECODE)
    )
    imported = metric(platform, second, "headrace_engine_imported")
    settled = settlement_count(platform)
    url, body = "/v1/chat/completions", chat(number, **fields)
    answer, told = call(platform.gateway_url, platform.api_key, "POST", url, body)
    alone, _ = call(first.address, platform.engine_key(first), "POST", url, body)
    assert answer["choices"] == alone["choices"]
    for count in ("prompt_tokens", "completion_tokens"):
        assert answer["usage"][count] == alone["usage"][count]
    moved = metric(platform, second, "headrace_engine_imported") - imported
    assert moved == answer["usage"]["prompt_tokens"] - 1
    wait_until(lambda: settlement_count(platform) > settled)
    assert settlement_count(platform) == settled + 1
    explained = platform.admin("GET", f"/explain/route/{told.headers['x-request-id']}")
    legs = {each["leg"]: each["chosen_id"] for each in explained["decisions"]}
    assert legs == {"": second.id, "prefill": first.id}


def test_a_replica_that_is_killed_while_it_computes_a_prompt_loses_no_request(
    platform: PlatformProcess,
) -> None:
    first = replica_of(platform, ReplicaRole.PREFILL)
    (launch,) = (each for each in platform.launches() if each.name == first.id)
    victim = psutil.Process(launch.pid)
    texts = [{"role": "user", "content": f"{places} are cities. " * 70}]
    body = {"model": model, "messages": texts, "max_tokens": 4}
    steps = metric(platform, first, "headrace_engine_steps_total")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            call, platform.gateway_url, platform.api_key, "POST", "/v1/chat/completions", body
        )
        wait_until(lambda: metric(platform, first, "headrace_engine_steps_total") > steps)
        victim.kill()
        answer, _ = asked.result()
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    wait_until(lambda: is_split(platform))
