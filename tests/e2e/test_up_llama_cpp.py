"""llama.cpp's server as an engine of the platform: the real one, with the demo model.

It comes from the `xllamacpp` package of this environment, or of the Python that
HEADRACE_TEST_LLAMA_PYTHON names; without either these tests are skipped.
"""

import importlib.util
import os
import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from headrace.adapters import llama_cpp
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import Replica, ReplicaState

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
context_length = 1024
token_names = ("prompt_tokens", "cached_tokens", "completion_tokens")
python_variable = "HEADRACE_TEST_LLAMA_PYTHON"


def llama_python() -> str:
    """A Python that has `xllamacpp`."""
    named = os.environ.get(python_variable)
    if named:
        return named
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip(f"no xllamacpp here, and {python_variable} names no Python that has it")
    return sys.executable


class LlamaPlatform:
    """A platform whose only deployment runs on llama.cpp."""

    def __init__(self, platform: PlatformProcess) -> None:
        self.platform = platform
        platform.admin("POST", "/tenants", name="acme", postpaid=True)
        platform.admin("POST", "/projects", tenant="acme", name="default")
        platform.api_key = platform.admin("POST", "/keys", project="default")["key"]
        platform.admin("POST", "/models", name=model, source=model, context_length=context_length)
        platform.admin("POST", "/deployments", model=model, engine="llama_cpp", threads=2)
        wait_until(lambda: [found.state for found in platform.replicas()] == [ReplicaState.ACTIVE])
        self.client = openai.OpenAI(
            base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=5
        )
        wait_until(lambda: [card.id for card in self.client.models.list()] == [model])

    @property
    def replica(self) -> Replica:
        (replica,) = self.platform.replicas()
        return replica

    def usage(self) -> dict[str, int]:
        """What was billed so far."""
        total: dict[str, int] = self.platform.admin("GET", "/usage")["total"]
        return total

    def engine_counts(self) -> tuple[int, int, int]:
        """Prompt, cached and generated tokens by the engine's own metrics, once it is idle."""
        while True:
            replica = self.replica
            request = urllib.request.Request(
                f"{replica.address}/metrics",
                headers=llama_cpp.adapter.headers(self.platform.engine_key(replica)),
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                load = llama_cpp.adapter.load(answer.read().decode())
            if load.running_requests == 0 == load.waiting_requests:
                assert load.prompt_tokens_total is not None
                assert load.cached_tokens_total is not None
                assert load.completion_tokens_total is not None
                return (
                    load.prompt_tokens_total,
                    load.cached_tokens_total,
                    load.completion_tokens_total,
                )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaPlatform]:
    python = llama_python()
    directory = tmp_path_factory.mktemp("llama")
    program = directory / "bin" / "llama-server"
    program.parent.mkdir()
    server = Path(__file__).with_name("llama_server.py")
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} {shlex.quote(str(server))} "$@"\n')
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        with PlatformProcess.start(directory) as platform:
            yield LlamaPlatform(platform)


def ask(llama: LlamaPlatform, words: str, **more: Any) -> Any:
    return llama.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": words}], temperature=0, **more
    )


def test_answers_are_the_models_and_billed_by_the_engines_counts(llama: LlamaPlatform) -> None:
    billed = llama.usage()
    whole = ask(llama, "Name a colour.", max_tokens=8)
    chunks = list(
        ask(
            llama,
            "Name a colour.",
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    wait_until(lambda: llama.usage()["finished"] == billed["finished"] + 2)
    now = llama.usage()

    assert whole.choices[0].message.content
    assert whole.model == model
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert all("timings" not in (chunk.model_extra or {}) for chunk in chunks)
    used = [whole.usage, chunks[-1].usage]
    assert used[0].completion_tokens == used[1].completion_tokens
    assert now["prompt_tokens"] - billed["prompt_tokens"] == sum(u.prompt_tokens for u in used)
    assert now["completion_tokens"] - billed["completion_tokens"] == sum(
        u.completion_tokens for u in used
    )


def test_text_completions_hold_the_same(llama: LlamaPlatform) -> None:
    billed = llama.usage()
    chunks = list(
        llama.client.completions.create(
            model=model, prompt="One, two,", max_tokens=6, temperature=0, stream=True
        )
    )
    wait_until(lambda: llama.usage()["finished"] == billed["finished"] + 1)

    assert "".join(chunk.choices[0].text for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)  # nobody asked for it
    assert llama.usage()["completion_tokens"] - billed["completion_tokens"] == 6


def test_usage_that_the_engine_tells_elsewhere_comes_in_a_chunk_of_its_own(
    llama: LlamaPlatform,
) -> None:
    billed = llama.usage()
    chunks = list(
        llama.client.completions.create(
            model=model,
            prompt="One, two,",
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    told = [chunk for chunk in chunks if chunk.usage is not None]
    wait_until(lambda: llama.usage()["finished"] == billed["finished"] + 1)

    assert told == chunks[-1:]
    assert told[0].choices == []
    assert told[0].usage is not None
    assert told[0].usage.completion_tokens == 6


def test_an_abort_is_billed_by_what_the_engine_had_told(llama: LlamaPlatform) -> None:
    billed, counted = llama.usage(), llama.engine_counts()
    stream = ask(
        llama,
        "Tell me a long story about a river.",
        max_tokens=900,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    seen = 0
    for chunk in stream:
        seen += bool(chunk.choices and chunk.choices[0].delta.content)
        if seen == 10:
            stream.response.close()
            break
    wait_until(lambda: llama.usage()["aborted"] == billed["aborted"] + 1)
    now = llama.usage()
    used = {name: now[name] - billed[name] for name in token_names}
    prompt, cached, completion = (
        now - before for now, before in zip(llama.engine_counts(), counted, strict=True)
    )

    assert used["prompt_tokens"] == prompt
    assert used["cached_tokens"] == cached
    assert 10 <= used["completion_tokens"] <= completion < 900  # and the engine stopped early


def test_a_prompt_beyond_a_slots_context_is_refused_with_numbers(llama: LlamaPlatform) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(llama, "hello " * 2 * context_length, max_tokens=4)

    assert refused.value.code == "context_length_exceeded"
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["max_model_len"] == context_length
    assert refused.value.body["prompt_tokens"] > 2 * context_length


def test_its_key_is_not_to_be_seen_and_asked_for(llama: LlamaPlatform) -> None:
    replica = llama.replica
    commands = [" ".join(process.cmdline()) for process in llama.platform.tree()]

    assert any("llama_server.py" in command for command in commands)
    key = llama.platform.engine_key(replica)
    assert not any(key in command for command in commands)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{replica.address}/v1/models", timeout=30)
    with refused.value as answer:
        assert answer.code == 401


def test_a_killed_engine_is_started_again_and_nothing_of_it_is_left(llama: LlamaPlatform) -> None:
    (engine,) = [p for p in llama.platform.tree() if p.name() != "sh" and is_engine(p)]
    engine.kill()
    wait_until(
        lambda: (
            llama.replica.state is ReplicaState.ACTIVE
            and [p.pid for p in llama.platform.tree() if is_engine(p)] not in ([], [engine.pid])
        )
    )

    assert ask(llama, "Hello!", max_tokens=4).choices[0].message.content


def is_engine(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return any(word.endswith("llama_server.py") for word in words)


def test_the_end_of_the_supervisor_ends_the_engine(llama: LlamaPlatform) -> None:
    llama.platform.process.kill()
    llama.platform.process.wait()

    wait_until(lambda: llama.platform.tree() == [])
