"""Engines that others run, behind the platform: by OpenAI's API and by Anthropic's.

The one behind both is a `headrace serve` of its own, whose Messages API the official client is
tested against; the platform knows it by its address and by where its key is kept.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from headrace.adapters.headrace import key_variable
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.sim.serve_process import ServeProcess
from headrace.spec.deployments import ReplicaState

pytestmark = pytest.mark.e2e

headrace = (sys.executable, "-m", "headrace.cli.main")
demo = "smollm2-135m-instruct"
secret = "the-key-of-somebody-elses-engine"
tool = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Site:
    """A platform without an engine of its own, and the engine that it uses."""

    platform: PlatformProcess
    engine: ServeProcess

    def requests(self, model: str, key: str = "") -> int:
        """How many requests of a model are booked, of one key or of all."""
        count: int = self._used(model, key)["requests"]
        return count

    def billed(self, model: str, key: str = "") -> dict[str, int]:
        """What was billed of a model so far, to one key or to all."""
        total = self._used(model, key)
        return {name: count for name, count in total.items() if name.endswith("_tokens")}

    def _used(self, model: str, key: str) -> dict[str, int]:
        words = f"model={model}" + (f"&key={key}" if key else "")
        total: dict[str, int] = self.platform.admin("GET", f"/usage?{words}")["total"]
        return total


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELSEWHERE_API_KEY", secret)
        with (
            ServeProcess.start(
                demo, "--threads", "1", environment={key_variable: secret}
            ) as engine,
            PlatformProcess.start(tmp_path_factory.mktemp("upstreams")) as platform,
        ):
            platform.admin("POST", "/tenants", name="acme", postpaid=True)
            platform.admin("POST", "/projects", tenant="acme", name="default")
            platform.api_key = platform.admin("POST", "/keys", project="default")["key"]
            kinds = (("direct", "headrace", ""), ("openai", "openai", "/v1"))
            for name, kind, path in (*kinds, ("translated", "anthropic", "/v1")):
                platform.admin("POST", "/models", name=name, source=f"api:{engine.model}")
                upstream = {"address": engine.url + path, "key": "env:ELSEWHERE_API_KEY"}
                platform.admin("POST", "/deployments", model=name, engine=kind, upstream=upstream)
            platform.wait_active(3)
            yield Site(platform, engine)


@pytest.fixture(scope="module")
def client(site: Site) -> openai.OpenAI:
    url = f"{site.platform.gateway_url}/v1"
    made = openai.OpenAI(base_url=url, api_key=site.platform.api_key, max_retries=5)
    wait_until(lambda: len([card.id for card in made.models.list()]) == 3)
    return made


def is_known(client: openai.OpenAI) -> bool:
    """Whether the gateway knows a client's key by now."""
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True


def ask(client: openai.OpenAI, model: str, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": "Name a colour."}]
    limit = {"max_completion_tokens": 12} | more
    return client.chat.completions.create(model=model, messages=messages, temperature=0, **limit)


@pytest.mark.parametrize("model", ["direct", "openai", "translated"])
def test_answers_are_those_of_the_engine_and_its_counts_are_billed(
    site: Site, client: openai.OpenAI, model: str
) -> None:
    direct = openai.OpenAI(base_url=f"{site.engine.url}/v1", api_key=secret)
    wanted = ask(direct, site.engine.model)
    whole = ask(client, model)
    assert whole.model == model
    assert whole.choices[0].message.content == wanted.choices[0].message.content
    assert whole.choices[0].finish_reason == wanted.choices[0].finish_reason
    chunks = list(ask(client, model, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == wanted.choices[0].message.content
    used = [whole.usage, chunks[-1].usage]
    assert [each.prompt_tokens for each in used] == [wanted.usage.prompt_tokens] * 2
    assert [each.completion_tokens for each in used] == [wanted.usage.completion_tokens] * 2
    wait_until(lambda: site.requests(model) == 2)
    billed = site.billed(model)
    assert billed["prompt_tokens"] == 2 * wanted.usage.prompt_tokens
    assert billed["completion_tokens"] == 2 * wanted.usage.completion_tokens


def test_a_forced_call_comes_through_both_translations(client: openai.OpenAI) -> None:
    answer = ask(
        client,
        "translated",
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_completion_tokens=60,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Bern"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_what_the_other_api_cannot_say_is_refused_and_costs_nothing(
    site: Site, client: openai.OpenAI
) -> None:
    key = site.platform.admin("POST", "/keys", project="default", name="refused")["key"]
    own = client.with_options(api_key=key)
    wait_until(lambda: is_known(own))
    used = ask(own, "translated").usage
    with pytest.raises(openai.BadRequestError) as refused:
        ask(own, "translated", seed=1)
    assert refused.value.param == "seed"
    with pytest.raises(openai.NotFoundError):
        own.completions.create(model="translated", prompt="Hello", max_tokens=2)
    used_last = ask(own, "translated").usage
    wait_until(lambda: site.requests("translated", "refused") == 4)  # the refused are booked at 0
    billed = site.billed("translated", "refused")
    assert billed["prompt_tokens"] == used.prompt_tokens + used_last.prompt_tokens
    assert billed["completion_tokens"] == used.completion_tokens + used_last.completion_tokens


def test_the_key_is_stored_and_shown_nowhere(site: Site) -> None:
    exported = json.dumps(site.platform.admin("GET", "/manifest"))
    assert "env:ELSEWHERE_API_KEY" in exported
    kept = [path for path in site.platform.directory.rglob("*") if path.is_file()]
    for path in kept:
        assert secret.encode() not in path.read_bytes(), path
    shown = subprocess.run(
        [*headrace, "deployments", "show", "translated", "--admin-url", site.platform.admin_url],
        env={"HEADRACE_ADMIN_TOKEN": site.platform.admin_token, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "env:ELSEWHERE_API_KEY" in shown.stdout
    assert secret not in shown.stdout


def test_an_engine_that_others_end_is_noticed_and_used_again(
    site: Site, client: openai.OpenAI
) -> None:
    """Last: it ends what the others use."""
    port = site.engine.url.rpartition(":")[2]
    site.engine.stop()
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
        ask(client.with_options(max_retries=0), "openai")
    arguments = ("--threads", "1", "--port", port)
    with ServeProcess.start(demo, *arguments, environment={key_variable: secret}):
        wait_until(
            lambda: all(found.state is ReplicaState.ACTIVE for found in site.platform.replicas())
        )
        assert ask(client, "openai").choices[0].message.content
