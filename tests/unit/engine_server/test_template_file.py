"""A chat template of the operator's own, through the whole server and in public prompts."""

import json
from pathlib import Path

import msgspec
import pytest

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.public_prompts import read_public_prompts
from headrace.engine_server.service import ModelService, ServiceConfig
from headrace.engine_server.template_file import bytes_max, read_template
from headrace.sim import engine_process
from headrace.sim.served_app import ServedApp, chat_body

turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


async def test_prompts_are_rendered_by_it(
    byte_model: Path, engine_config: EngineConfig, tmp_path: Path
) -> None:
    (tmp_path / "mended.jinja").write_text(turns)
    (tmp_path / "public.jsonl").write_text(
        json.dumps({"messages": [{"role": "system", "content": "be kind"}]})
    )
    config = msgspec.structs.replace(
        engine_config,
        model_path=str(byte_model),
        chat_template_path=str(tmp_path / "mended.jinja"),
        public_prompts=str(tmp_path / "public.jsonl"),
    )
    (public,) = read_public_prompts(config)
    assert bytes(public).startswith(b"<system>be kind")
    service = ModelService(
        ServiceConfig(byte_model, "bytes", config),
        SystemClock(),
        command=engine_process.command("serve"),
    )
    try:
        await service.start()
        await service.engine.wait_ready()
        server = ServedApp(EngineServerApp(service, None), service)
        answer = await server.post("/apply-template", chat_body())
        assert answer.json["prompt"] == "<user>hello<assistant>"
    finally:
        await service.close()


@pytest.mark.parametrize("data", [None, b"", b" \n", b"\xff\xfe", b"x" * (bytes_max + 1)])
def test_a_file_that_is_no_template_is_refused(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "template"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigurationError, match="--chat-template"):
        read_template(path)
