"""`suffix` through the whole server, of a model that has the tokens for it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import gguf
import pytest

from headrace.base.clock import SystemClock
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.sim import engine_process
from headrace.sim.served_app import ServedApp, text_body
from headrace.tokenizer.vocabulary import byte_of_character

texts = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture
def code_model(tmp_path: Path) -> Path:
    """The three tokens in place of bytes 0 to 2, which come after the others and the end."""
    path = tmp_path / "code.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    by_byte = {byte: character for character, byte in byte_of_character.items()}
    characters = [by_byte[byte] for byte in range(256)]
    tokens = [*texts, *characters[3:], "<|end|>", *characters[:3], "ĠĠ"]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    kinds = [control] * 3 + [normal] * 253 + [control] + [normal] * 4
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
async def server(code_model: Path, engine_config: EngineConfig) -> AsyncIterator[ServedApp]:
    config = ServiceConfig(code_model, "bytes", engine_config)
    command = engine_process.command("serve")
    service = ModelService(config, SystemClock(), command=command)
    try:
        await service.start()
        await service.engine.wait_ready()
        yield ServedApp(EngineServerApp(service, None), service)
    finally:
        await service.close()


async def test_a_gap_is_asked_for_between_its_texts(server: ServedApp) -> None:
    body = text_body(prompt="ab", suffix="cd", return_token_ids=True, max_tokens=4)
    answer = await server.post("/v1/completions", body)
    assert answer.status == 200
    (choice,) = answer.json["choices"]
    assert choice["prompt_token_ids"] == [0, 97, 98, 1, 99, 100, 2]
    assert answer.json["usage"]["prompt_tokens"] == 7
    (card,) = (await server.get("/v1/models")).json["data"]
    assert "suffix" in card["supported_parameters"]


async def test_ollamas_suffix_asks_for_the_same(server: ServedApp) -> None:
    body = {"model": "bytes", "prompt": "ab", "suffix": "cd", "stream": False}
    options = {"num_predict": 4, "temperature": 0}
    sent = json.dumps({**body, "options": options}).encode()
    answer = (await server.post("/api/generate", sent)).json
    same = await server.post("/v1/completions", text_body(prompt="ab", suffix="cd", max_tokens=4))
    assert answer["response"] == same.json["choices"][0]["text"]
    assert answer["prompt_eval_count"] == 7
    shown = await server.post("/api/show", b'{"model": "bytes"}')
    assert "insert" in shown.json["capabilities"]
