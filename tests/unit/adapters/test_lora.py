"""How each engine is given LoRA adapters, and how a request asks it for one."""

import pytest

from headrace.adapters.lora import lora_fields
from headrace.adapters.protocol import LaunchRequest, Lora
from headrace.adapters.registry import all_adapters, find_adapter
from headrace.base.errors import InvalidRequest

sql, tone = Lora("sql", "/adapters/sql"), Lora("tone", "hf://owner/tone")


def launched(engine: str, *loras: Lora) -> str:
    """An engine's command line."""
    request = LaunchRequest(
        model_path="/m", served_model_name="m", host="127.0.0.1", port=9, api_key="k", loras=loras
    )
    return " ".join(find_adapter(engine).command(request).argv)


def test_each_engine_is_told_in_its_own_words() -> None:
    ours = launched("headrace", sql, tone)
    assert "--lora sql=/adapters/sql --lora tone=hf://owner/tone --max-loras 2" in ours
    vllm = launched("vllm", sql, tone)
    assert "--enable-lora --max-loras 2 --lora-modules sql=/adapters/sql tone=owner/tone" in vllm
    sglang = launched("sglang", sql, tone)
    assert "--enable-lora --lora-paths sql=/adapters/sql tone=owner/tone" in sglang
    llama = launched("llama_cpp", sql, Lora("tone", "/adapters/tone.gguf"))
    expected = "--lora-init-without-apply --lora /adapters/sql --lora /adapters/tone.gguf"
    assert expected in llama


@pytest.mark.parametrize("engine", ["headrace", "vllm", "sglang", "llama_cpp"])
def test_without_adapters_nothing_is_said_of_them(engine: str) -> None:
    assert "lora" not in launched(engine)


def test_an_engine_that_reads_files_is_not_given_a_reference() -> None:
    with pytest.raises(InvalidRequest, match="give a path instead of hf://owner/tone"):
        launched("llama_cpp", tone)


@pytest.mark.parametrize("engine", ["tgi", "tensorrt_llm", "transformers"])
def test_adapters_are_refused_for_engines_that_get_none(engine: str) -> None:
    with pytest.raises(InvalidRequest, match="given no LoRA adapters") as refused:
        launched(engine, sql)
    assert refused.value.param == "loras"


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        ("headrace", {"model": "m:tone"}),
        ("vllm", {"model": "tone"}),
        ("sglang", {"model": "m", "lora_path": "tone"}),
        ("llama_cpp", {"model": "m", "lora": [{"id": 1, "scale": 1.0}]}),
    ],
)
def test_a_request_asks_in_the_engines_own_fields(engine: str, fields: dict[str, object]) -> None:
    choice = find_adapter(engine).facts.lora
    assert lora_fields(choice, "m", "tone", ("sql", "tone")) == fields


def test_only_these_engines_are_given_adapters() -> None:
    given = {adapter.name for adapter in all_adapters if adapter.facts.lora is not None}
    assert given == {"headrace", "vllm", "sglang", "llama_cpp"}
