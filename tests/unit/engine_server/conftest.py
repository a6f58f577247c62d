from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.messages import EngineConfig, Submit
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.engine_server.usage_log import UsageLog
from headrace.engine_server.watchdog import Watchdog
from headrace.sim import engine_process
from headrace.sim.served_app import ServedApp

MakeSubmit = Callable[..., Submit]
RunServer = Callable[..., AbstractAsyncContextManager[ServedApp]]
RunEngine = Callable[..., AbstractAsyncContextManager[tuple[EngineClient, UsageLog]]]


@pytest.fixture
def engine_config() -> EngineConfig:
    return EngineConfig(
        model_path="fake.gguf",
        kv_tokens=32_768,
        sequences_max=8,
        step_rows=64,
        waiting_max=16,
        cache_namespace="fake",
    )


@pytest.fixture
def make_submit() -> MakeSubmit:
    def make(
        request_id: str = "r",
        max_tokens: int = 5,
        prompt: tuple[int, ...] = (1, 2),
        **fields: Any,
    ) -> Submit:
        return Submit(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            seed=0,
            max_tokens=max_tokens,
            min_tokens=0,
            stop_token_ids=[],
            cache_salt="",
            **fields,
        )

    return make


@pytest.fixture
def run_engine(engine_config: EngineConfig) -> RunEngine:
    """A client of a real engine process with the fake runner; ready where it can be."""

    @asynccontextmanager
    async def run(
        behaviour: str = "serve",
        *,
        wait: bool = True,
        watchdog: Watchdog | None = None,
        packed_path: Path | None = None,
    ) -> AsyncIterator[tuple[EngineClient, UsageLog]]:
        usage = UsageLog()
        client = EngineClient(
            msgspec.structs.replace(
                engine_config, packed_path=None if packed_path is None else str(packed_path)
            ),
            SystemClock(),
            on_end=usage.end,
            command=engine_process.command(behaviour),
            watchdog=watchdog,
        )
        client.start()
        try:
            if wait:
                await client.wait_ready()
            yield client, usage
        finally:
            await client.close()

    return run


def byte_level_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file without weights: token i is byte i, and the template is a line for each turn.

    Its one merge, of two spaces, is there because a file has to have some."""
    path = tmp_path_factory.mktemp("model") / "bytes.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    tokens = [*byte_level_alphabet(), "<|end|>", "ĠĠ"]
    normal = [gguf.TokenType.NORMAL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([*normal * 256, gguf.TokenType.CONTROL, *normal])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(256)
    writer.add_chat_template(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:"
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def run_server(byte_model: Path, engine_config: EngineConfig) -> RunServer:
    """An app over a real engine process with the fake runner, ready unless not waited for."""

    @asynccontextmanager
    async def run(
        behaviour: str = "serve", *, api_key: str | None = None, wait: bool = True
    ) -> AsyncIterator[ServedApp]:
        config = ServiceConfig(byte_model, "bytes", engine_config)
        command = engine_process.command(behaviour)
        service = ModelService(config, SystemClock(), command=command)
        try:
            if wait:
                await service.start()
                await service.engine.wait_ready()
            yield ServedApp(EngineServerApp(service, api_key), service)
        finally:
            await service.close()

    return run
