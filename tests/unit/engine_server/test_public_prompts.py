import json
from pathlib import Path

import msgspec
import pytest

from headrace.adapters.headrace import HeadraceAdapter
from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.public_prompts import read_public_prompts
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.sim import engine_process
from headrace.sim.served_app import ServedApp, text_body
from headrace.spec.public_prompts import prompts_max


def config_of(model: Path, config: EngineConfig, path: Path, *lines: object) -> EngineConfig:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return msgspec.structs.replace(config, model_path=str(model), public_prompts=str(path))


def test_prompts_are_read_as_requests_begin(
    byte_model: Path, engine_config: EngineConfig, tmp_path: Path
) -> None:
    chat = {"messages": [{"role": "system", "content": "be kind"}]}
    config = config_of(byte_model, engine_config, tmp_path / "p", chat, {"prompt": "once"})
    texts = [bytes(ids) for ids in read_public_prompts(config)]
    assert texts[1] == b"once"
    assert texts[0].startswith(b"system:be kind\n")


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([{"prompt": "a"}, {}], "prompt 2: it needs messages or prompt"),
        ([{"messages": [], "prompt": "a"}], "not both"),
        ([{"text": "a"}], "unknown field"),
        ([5], "prompt 1"),
        ([{"prompt": "a"}] * (prompts_max + 1), "too many"),
    ],
)
def test_a_wrong_file_is_refused(
    byte_model: Path, engine_config: EngineConfig, tmp_path: Path, lines: list[object], what: str
) -> None:
    config = config_of(byte_model, engine_config, tmp_path / "p", *lines)
    with pytest.raises(ConfigurationError, match=what):
        read_public_prompts(config)


def test_a_file_that_is_not_there_is_refused_and_none_is_fine(
    engine_config: EngineConfig, tmp_path: Path
) -> None:
    missing = msgspec.structs.replace(engine_config, public_prompts=str(tmp_path / "no"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_public_prompts(missing)
    assert read_public_prompts(engine_config) == ()


async def test_tenants_of_a_gateway_share_what_is_public_and_nothing_else(
    byte_model: Path, engine_config: EngineConfig
) -> None:
    public = "You help the customers of a mill, in two lines at most."  # three whole blocks
    lines = json.dumps({"prompt": public})  # as a deployment hands them to its replicas
    config = msgspec.structs.replace(
        engine_config, model_path=str(byte_model), public_prompts=lines
    )
    adapter = HeadraceAdapter()

    async def cached(tenant: str, prompt: str) -> int:
        sent = adapter.extras(stream=False, request_id=f"{tenant}-{len(prompt)}", cache_salt=tenant)
        headers = {**adapter.headers("key"), **sent.headers}
        answer = await server.post(
            "/v1/completions", text_body(prompt=prompt, max_tokens=1), headers=headers
        )
        count: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    service = ModelService(
        ServiceConfig(byte_model, "bytes", config),
        SystemClock(),
        command=engine_process.command("serve"),
    )
    try:
        await service.start()
        await service.engine.wait_ready()
        server = ServedApp(EngineServerApp(service, "key"), service)
        assert await cached("ann", public + " What do you grind, and what does it cost?") == 0
        assert await cached("bob", public + " What do you grind, and what does it cost??") == 48
        assert await cached("bob", public + " What do you grind, and what does it cost???") > 80
        assert await cached("cy", "What do I ask? " + public) == 0
        asked = msgspec.json.encode({"model": "bytes", "prompt": public + "?"})
        told = await server.post("/tokenize", asked, headers=adapter.headers("key"))
        assert told.json["public_count"] == len(public)
    finally:
        await service.close()
