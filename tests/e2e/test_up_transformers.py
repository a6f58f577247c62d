"""`transformers serve` as an engine of the platform: the real one, with a tiny random model.

It needs PyTorch, `accelerate` and what `transformers[serving]` has; without them this is skipped.
"""

import importlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import ReplicaState

pytestmark = pytest.mark.e2e

needed = ("torch", "transformers", "accelerate", "fastapi", "uvicorn")
name = "tiny"
small_cache = ("--cb-num-blocks", "64", "--cb-block-size", "32")  # else it takes most of memory
words: list[Any] = [{"role": "user", "content": "Name a colour."}]
program_text = "from transformers.cli.transformers import main; main()"


def write_model(directory: Path) -> Path:
    """A llama of one layer over bytes, with random weights, as its own library writes it."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = "{% for turn in messages %}{{ turn.content }}\n{% endfor %}"
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


class Site:
    """A platform whose only deployment runs on Transformers' server."""

    def __init__(self, platform: PlatformProcess, model: Path) -> None:
        self.platform = platform
        platform.admin("POST", "/tenants", name="acme", postpaid=True)
        platform.admin("POST", "/projects", tenant="acme", name="default")
        key = platform.admin("POST", "/keys", project="default")["key"]
        platform.admin("POST", "/models", name=name, source=str(model), context_length=2048)
        platform.admin(
            "POST",
            "/deployments",
            model=name,
            engine="transformers",
            threads=1,
            engine_arguments=list(small_cache),
        )
        wait_until(lambda: [found.state for found in platform.replicas()] == [ReplicaState.ACTIVE])
        self.client = openai.OpenAI(
            base_url=f"{platform.gateway_url}/v1", api_key=key, max_retries=5, timeout=120
        )
        wait_until(lambda: [card.id for card in self.client.models.list()] == [name])

    def billed(self) -> tuple[int, int]:
        """Prompt and completion tokens that were billed so far."""
        total = self.platform.admin("GET", "/usage")["total"]
        return total["prompt_tokens"], total["completion_tokens"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    missing = [each for each in needed if importlib.util.find_spec(each) is None]
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("transformers")
    program = directory / "bin" / "transformers"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(program_text)} "$@"\n'
    )
    program.chmod(0o755)
    model = write_model(directory / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        with PlatformProcess.start(directory) as platform:
            yield Site(platform, model)


def ask(site: Site, **more: Any) -> Any:
    return site.client.chat.completions.create(model=name, messages=words, temperature=0, **more)


@pytest.mark.timeout(600)
def test_transformers_answers_streams_and_is_billed_by_its_own_counts(site: Site) -> None:
    whole = ask(site, max_tokens=8)
    assert whole.model == name
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 8

    chunks = list(ask(site, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    used = whole.usage.prompt_tokens, whole.usage.completion_tokens
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == used
    wait_until(lambda: site.billed() == (2 * used[0], 2 * used[1]))

    with ask(site, max_tokens=1500, stream=True) as stream:
        next(iter(stream))  # the caller leaves: what came is billed, and the engine is free
    wait_until(lambda: site.billed()[0] > 2 * used[0])
    assert site.billed()[1] < 2 * used[1] + 1500
    assert ask(site, max_tokens=1).usage.completion_tokens == 1


def test_a_limit_beyond_the_context_reaches_no_engine_that_it_would_end(site: Site) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(site, max_tokens=1_000_000)
    assert refused.value.code == "context_length_exceeded"
    assert ask(site, max_tokens=1).usage.completion_tokens == 1
