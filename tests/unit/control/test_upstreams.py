"""What a deployment of an engine that others run may say, and how its replica lives."""

import asyncio
from typing import Any

import msgspec
import pytest

from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.control.actions import LaunchReplica
from headrace.control.decide import ControlTimes, decide
from headrace.control.nodes.node_loop import ours
from headrace.control.probe import (
    EngineProbe,
    Question,
    credential_of,
    probing_request,
    question_of,
)
from headrace.control.upstreams import check_upstream
from headrace.control.world import ModelFileState, World
from headrace.http.client import HttpClient, WholeAnswer
from headrace.sim.clock import ManualClock
from headrace.spec.autoscaling import Autoscaling
from headrace.spec.deployments import Deployment, LoraSource, Replica, ReplicaState, Upstream
from headrace.spec.models import ModelVersion
from headrace.spec.resources import ReplicaResources

pepper = bytes(range(32))

api = Upstream(address="https://api.example.com/v1", key="env:EXAMPLE_API_KEY")


def deployment(**changes: Any) -> Deployment:
    base = Deployment(
        id="dep_1",
        name="d",
        parent_id="mod_1",
        create_time=0,
        model_version_id="ver_1",
        engine="openai",
        upstream=api,
    )
    return msgspec.structs.replace(base, **changes)


def version(source: str = "api:big-1") -> ModelVersion:
    return ModelVersion(id="ver_1", name="v1", parent_id="mod_1", create_time=0, source=source)


def check(changed: Deployment, of: ModelVersion | None = None) -> None:
    check_upstream(changed, find_adapter(changed.engine), of or version())


@pytest.mark.parametrize(
    "upstream",
    [
        api,
        Upstream(address="http://127.0.0.1:8000"),
        Upstream(address="http://[::1]:8000", key="env:VLLM_API_KEY"),
        Upstream(address="http://10.0.0.5:8000", key="env:VLLM_API_KEY"),
        Upstream(address="http://vllm:8000", key="file:/run/secrets/vllm"),
        Upstream(address="http://engines.example.com:8000"),  # nothing secret goes there
    ],
)
def test_addresses_of_engines_are_taken(upstream: Upstream) -> None:
    check(deployment(upstream=upstream))


@pytest.mark.parametrize(
    ("upstream", "param"),
    [
        (Upstream(address="api.example.com/v1"), "upstream.address"),
        (Upstream(address="ftp://api.example.com"), "upstream.address"),
        (Upstream(address="https://user:pw@api.example.com"), "upstream.address"),
        (Upstream(address="https://api.example.com/v1?key=1"), "upstream.address"),
        (Upstream(address="http://169.254.169.254/latest"), "upstream.address"),
        (Upstream(address="https://[::1"), "upstream.address"),
        (Upstream(address="https://a b/v1"), "upstream.address"),
        (Upstream(address="http://api.example.com/v1", key="env:A_KEY"), "upstream.address"),
        (Upstream(address="https://api.example.com/v1", key="sk-123"), "upstream.key"),
    ],
)
def test_what_is_no_address_or_would_tell_a_key_is_refused(upstream: Upstream, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(deployment(upstream=upstream))
    assert refused.value.param == param
    assert "sk-123" not in refused.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 2},
        {"engine_arguments": ("--x",)},
        {"loras": (LoraSource("a", "/a"),)},
        {"resources": ReplicaResources(cpu_count=1)},
        {"autoscaling": Autoscaling(min=0, max=2)},
        {"replicas": 2},
        {"upstream": None},  # an API of others without an address
        {"upstream": None, "engine": "headrace"},  # a version that only others have
    ],
)
def test_what_makes_no_sense_of_an_engine_of_others_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check(deployment(**changes))


def test_its_replica_needs_no_node_no_launcher_and_no_file() -> None:
    wanted = deployment()
    replica = Replica(id="rep_1", name="d-0", parent_id="dep_1", create_time=0)
    world = World(1000.0, wanted, (replica,), {}, ModelFileState(path="big-1"), has_nodes=True)
    assert decide(world, ControlTimes()) == [
        LaunchReplica(wanted, wanted.template, replica, "big-1")
    ]
    started = msgspec.structs.replace(replica, id="rep_2", parent_id="dep_2")
    assert ours([replica, started], [wanted, deployment(id="dep_2", upstream=None)]) == [started]


def test_its_key_is_read_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(id="rep_1", name="d-0", parent_id="dep_1", create_time=0, upstream=api)
    monkeypatch.delenv("EXAMPLE_API_KEY", raising=False)
    assert credential_of(replica, pepper) is None
    monkeypatch.setenv("EXAMPLE_API_KEY", "sk-1")
    assert credential_of(replica, pepper) == "sk-1"
    keyless = msgspec.structs.replace(replica, upstream=Upstream(address=api.address))
    assert credential_of(keyless, pepper) == ""


def test_a_missing_key_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXAMPLE_API_KEY", raising=False)
    replica = Replica(
        id="rep_1",
        name="d-0",
        parent_id="dep_1",
        create_time=0,
        state=ReplicaState.LOADING,
        address=api.address,
        upstream=api,
    )

    async def look() -> str:
        client = HttpClient()
        try:
            found = await EngineProbe(client, ManualClock(), pepper).readiness(
                find_adapter("openai"), replica
            )
        finally:
            await client.close()
        return "" if found is None else found.detail

    assert "env:EXAMPLE_API_KEY" in asyncio.run(look())


def test_an_api_that_refuses_our_key_is_not_asked_every_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY", "sk-wrong")
    replica = Replica(
        id="rep_1", name="d-0", parent_id="dep_1", create_time=0, address=api.address, upstream=api
    )
    clock = ManualClock()
    asked: list[str] = []

    async def refuse(_: object, method: str, url: str, **options: Any) -> WholeAnswer:
        asked.append(options["headers"]["Authorization"])
        return WholeAnswer(401, b"{}")

    monkeypatch.setattr(HttpClient, "fetch", refuse)

    async def look() -> None:
        probe = EngineProbe(HttpClient(), clock, pepper)
        for _ in range(20):
            found = await probe.readiness(find_adapter("openai"), replica)
            assert found is not None
            assert "refuses our key" in found.detail
            clock.advance(1.0)
        monkeypatch.setenv("EXAMPLE_API_KEY", "sk-renewed")  # is tried at once
        await probe.readiness(find_adapter("openai"), replica)

    asyncio.run(look())
    assert asked == ["Bearer sk-wrong"] * 2 + ["Bearer sk-renewed"]


@pytest.mark.parametrize(
    ("engine", "path", "field"),
    [
        ("headrace", "/v1/completions", "max_tokens"),
        ("managed", "/v1/chat/completions", "max_tokens"),
        ("openai", "/v1/chat/completions", "max_completion_tokens"),
        ("anthropic", "/v1/messages", "max_tokens"),
    ],
)
def test_a_token_is_asked_for_as_the_engine_has_it(engine: str, path: str, field: str) -> None:
    asked = probing_request(find_adapter(engine), "big-1", Question.TOKEN)
    assert asked is not None
    asked_path, body = asked
    fields = msgspec.json.decode(body)
    assert asked_path == path
    assert fields["model"] == "big-1"
    assert fields[field] >= 1


@pytest.mark.parametrize(
    ("capabilities", "path", "fields"),
    [
        (("embeddings", "rerank"), "/v1/embeddings", {"input": "Hello"}),
        (("rerank",), "/v1/rerank", {"query": "Hello", "documents": ["Hello"]}),
    ],
)
def test_a_model_without_words_is_asked_for_what_it_makes(
    capabilities: tuple[str, ...], path: str, fields: dict[str, object]
) -> None:
    version = ModelVersion(
        id="ver_1", name="v1", create_time=0, source="m.gguf", capabilities=capabilities
    )
    question = question_of(version)
    assert question is not None
    asked = probing_request(find_adapter("headrace"), "small", question)
    assert asked is not None
    assert (asked[0], msgspec.json.decode(asked[1])) == (path, {"model": "small", **fields})
    for engine in ("anthropic", "transformers"):  # offer no such route
        assert probing_request(find_adapter(engine), "small", question) is None
    assert question_of(msgspec.structs.replace(version, capabilities=("speech",))) is None
