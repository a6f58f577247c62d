"""What engines are asked after a request, and how often."""

import json
from collections.abc import Mapping
from typing import cast

import pytest

from headrace.base.errors import HeadraceError, Unavailable
from headrace.gateway import upstream
from headrace.gateway.upstream import ask_usage, ask_usage_patiently, engine_body
from headrace.http.client import HttpClient, WholeAnswer
from headrace.router.endpoint import EndpointSpec
from headrace.spec.settlements import TokenUsage

known = b'{"usage":{"prompt_tokens":6,"completion_tokens":3,"total_tokens":9}}'
spec = EndpointSpec(
    id="rep_1", pool="dep_1", address="http://engine", served_model_name="m", engine="headrace"
)


class ScriptedClient:
    """Answers in turn; an error is raised."""

    def __init__(self, *answers: WholeAnswer | HeadraceError) -> None:
        self.left = list(answers)

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        limit_bytes: int,
    ) -> WholeAnswer:
        answer = self.left.pop(0)
        if isinstance(answer, HeadraceError):
            raise answer
        return answer


def test_a_lowered_limit_lowers_what_is_asked_for_at_least() -> None:
    asked = b'{"model":"demo","max_tokens":90,"min_tokens":50}'
    for limit, least in ((20, 20), (70, 50)):
        sent = json.loads(engine_body(asked, spec, {}, limit))
        assert (sent["max_tokens"], sent["min_tokens"]) == (limit, least)
    assert json.loads(engine_body(asked, spec, {}, None))["min_tokens"] == 50
    assert "min_tokens" not in json.loads(engine_body(b"{}", spec, {}, 20))


async def test_an_engine_that_does_not_know_yet_is_asked_again_if_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "usage_delays_s", (0.0, 0.0, 0.0))
    late = (WholeAnswer(404, b"{}"), Unavailable("busy"), WholeAnswer(200, known))
    patient, hasty = ScriptedClient(*late), ScriptedClient(*late)
    assert await ask_usage_patiently(cast(HttpClient, patient), spec, "r1") == TokenUsage(6, 0, 3)
    assert await ask_usage(cast(HttpClient, hasty), spec, "r1") is None
    assert len(hasty.left) == 2


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "usage_delays_s", (0.0, 0.0))
    client = ScriptedClient(*[WholeAnswer(404, b"{}")] * 4)
    assert await ask_usage_patiently(cast(HttpClient, client), spec, "r1") is None
    assert len(client.left) == 1
