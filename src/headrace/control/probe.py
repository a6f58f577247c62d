"""Asking an engine over its own HTTP interface: is it ready, does an answer come, is it idle?

The same address, key and route as the gateway uses, so that "ready" means what a customer would
see. Every question is bounded in time and size, and no answer is an answer.
"""

from enum import Enum, auto
from typing import Protocol

import msgspec

from headrace.adapters.facts import Ability
from headrace.adapters.meeting import alone_fields
from headrace.adapters.protocol import EngineAdapter, EngineLoad, Readiness, ReadinessState
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.secret_references import read_secret
from headrace.http.client import HttpClient
from headrace.spec.deployments import Replica
from headrace.spec.disaggregation import ReplicaRole
from headrace.spec.engine_key import engine_key_of
from headrace.spec.models import ModelVersion

readiness_timeout_s = 2.0
others_readiness_timeout_s = 10.0  # of an engine that others run, somewhere
paid_interval_s = 30.0  # between questions to an API of others that was ready
paid_unready_interval_s = 10.0  # to one that was not, as with a wrong key; it may shut us out
paid_probe_tokens = 16  # the fewest that every provider takes
token_timeout_s = 60.0  # the first token of a large model on a slow machine
answer_bytes_max = 4 << 20
_fields = msgspec.json.Decoder(dict[str, object])


class Question(Enum):
    """What an engine is asked that is small, and tells that customers will have their answers."""

    TOKEN = auto()
    EMBEDDING = auto()
    RANKING = auto()  # of a word among one


class Probe(Protocol):
    """What the observer asks of engines; a simulation answers in their place."""

    async def readiness(self, adapter: EngineAdapter, replica: Replica) -> Readiness | None:
        """What the engine says of itself; None if it does not answer."""
        ...

    async def answers(self, adapter: EngineAdapter, replica: Replica, question: Question) -> bool:
        """Whether the engine answers when it is asked as by a customer."""
        ...

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        """The engine's live load; all None if it does not answer."""
        ...


class KnownAnswer(msgspec.Struct, frozen=True):
    """What an API of others said, which holds for a while as long as it is asked with that key."""

    credential: str | None
    until_s: float
    readiness: Readiness


class EngineProbe:
    """Questions to replicas, by the adapter of their engine."""

    def __init__(self, client: HttpClient, clock: Clock, pepper: bytes) -> None:
        self._pepper = pepper
        self._client = client
        self._clock = clock
        self._known: dict[str, KnownAnswer] = {}  # APIs of others, by replica

    async def readiness(self, adapter: EngineAdapter, replica: Replica) -> Readiness | None:
        """What the engine says of itself; None if it does not answer.

        An API that others run is not asked again for a while, unless its key is another one now."""
        if not adapter.facts.is_paid:
            return await self._ask_readiness(adapter, replica)
        now_s = self._clock.monotonic_s()
        self._known = {name: known for name, known in self._known.items() if known.until_s > now_s}
        known = self._known.get(replica.id)
        credential = credential_of(replica, self._pepper)
        if known is not None and known.credential == credential:
            return known.readiness
        found = await self._ask_readiness(adapter, replica)
        if found is not None:
            is_ready = found.state is ReadinessState.READY
            until_s = now_s + (paid_interval_s if is_ready else paid_unready_interval_s)
            self._known[replica.id] = KnownAnswer(credential, until_s, found)
        return found

    async def _ask_readiness(self, adapter: EngineAdapter, replica: Replica) -> Readiness | None:
        credential = credential_of(replica, self._pepper)
        if credential is None:
            assert replica.upstream is not None, "engines of ours have their key"
            missing = f"the control plane has no {replica.upstream.key}; give it to it"
            return Readiness(ReadinessState.LOADING, missing)
        is_ours = replica.upstream is None
        try:
            answer = await self._client.fetch(
                "GET",
                replica.address + adapter.readiness_path,
                headers=adapter.headers(credential) if credential else {},
                timeout_s=readiness_timeout_s if is_ours else others_readiness_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return None
        if not is_ours and answer.status in (401, 403):
            return Readiness(ReadinessState.LOADING, f"it refuses our key ({answer.status})")
        return adapter.readiness(answer.status, answer.body)

    async def answers(self, adapter: EngineAdapter, replica: Replica, question: Question) -> bool:
        """Whether the engine answers when it is asked as by a customer.

        So it is taken to where it is not known to have a route for the question."""
        asked = probing_request(adapter, replica.served_model_name, question)
        if asked is None:
            return True
        path, body = asked
        if adapter.facts.roles_are_fixed and replica.role is not ReplicaRole.WHOLE:
            body = msgspec.json.encode(_fields.decode(body) | alone_fields())
        credential = credential_of(replica, self._pepper)
        try:
            answer = await self._client.fetch(
                "POST",
                adapter.url(replica.address, path),
                headers={
                    **(adapter.headers(credential) if credential else {}),
                    "Content-Type": "application/json",
                    "X-Request-Id": f"probe-{replica.id}-{replica.attempts}",
                },
                body=body,
                timeout_s=token_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return False
        return answer.status == 200

    async def load(self, adapter: EngineAdapter, replica: Replica) -> EngineLoad:
        """The engine's live load; all None if it does not answer, or tells none."""
        if adapter.metrics_path is None:
            return EngineLoad()
        credential = credential_of(replica, self._pepper)
        try:
            answer = await self._client.fetch(
                "GET",
                replica.address + adapter.metrics_path,
                headers=adapter.headers(credential) if credential else {},
                timeout_s=readiness_timeout_s,
                limit_bytes=answer_bytes_max,
            )
        except HeadraceError:
            return EngineLoad()
        if answer.status != 200:
            return EngineLoad()
        return adapter.load(answer.body.decode(errors="replace"))


def credential_of(replica: Replica, pepper: bytes) -> str | None:
    """What its engine asks for; empty: nothing, None: it is kept where this process cannot read."""
    upstream = replica.upstream
    if upstream is None:
        return engine_key_of(pepper, replica)
    return read_secret(upstream.key) if upstream.key else ""


def question_of(version: ModelVersion) -> Question | None:
    """What a replica of it is asked before it serves; None: no small question tells anything."""
    if version.writes_text:
        return Question.TOKEN
    if "embeddings" in version.abilities:
        return Question.EMBEDDING
    return Question.RANKING if "rerank" in version.abilities else None


def probing_request(
    adapter: EngineAdapter, served_model_name: str, question: Question
) -> tuple[str, bytes] | None:
    """The path and the body of a question; None if the engine is not known to have a route."""
    if question is Question.TOKEN:
        return _token_request(adapter, served_model_name)
    if adapter.dialect is not None or Ability.EMBEDDINGS not in adapter.facts.abilities:
        return None
    if question is Question.EMBEDDING:
        asked: dict[str, object] = {"model": served_model_name, "input": "Hello"}
        return "/v1/embeddings", msgspec.json.encode(asked)
    asked = {"model": served_model_name, "query": "Hello", "documents": ["Hello"]}
    return "/v1/rerank", msgspec.json.encode(asked)


def _token_request(adapter: EngineAdapter, served_model_name: str) -> tuple[str, bytes]:
    """One token, in a way that the engine has."""
    asked: dict[str, object] = {"model": served_model_name, adapter.output_limit_field: 1}
    if adapter.dialect is None and Ability.COMPLETIONS in adapter.facts.abilities:
        return "/v1/completions", msgspec.json.encode({**asked, "prompt": "Hello"})
    if adapter.facts.is_paid:
        asked[adapter.output_limit_field] = paid_probe_tokens
    asked["messages"] = [{"role": "user", "content": "Hello"}]
    body = msgspec.json.encode(asked)
    if adapter.dialect is None:
        return "/v1/chat/completions", body
    return adapter.dialect.request(body, None)
