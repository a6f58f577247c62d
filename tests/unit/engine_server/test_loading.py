"""What the engine process refuses to load."""

from pathlib import Path

import gguf
import msgspec
import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine_server.loading import blocks_of, check_context_length, check_vocabularies
from headrace.engine_server.messages import EngineConfig
from headrace.tokenizer.vocabulary import byte_of_character


def test_a_context_beyond_the_model_or_the_cache_is_refused_not_lowered(
    engine_config: EngineConfig,
) -> None:
    check_context_length(engine_config, 8192, model_limit=8192)
    with pytest.raises(ConfigurationError, match="made for 8192 tokens"):
        check_context_length(engine_config, 8193, model_limit=8192)
    small = msgspec.structs.replace(engine_config, kv_tokens=1024)
    with pytest.raises(ConfigurationError, match="--kv-tokens"):
        check_context_length(small, 1025, model_limit=8192)


def test_a_tenants_share_of_the_cache_is_whole_blocks_and_at_least_one() -> None:
    assert [blocks_of(count, 16) for count in (None, 1, 16, 47, 48)] == [None, 1, 1, 2, 3]


def model_with(tmp_path: Path, name: str, tokens: list[str], end_id: int) -> Path:
    path = tmp_path / name
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(end_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_draft_model_must_write_the_same_tokens(tmp_path: Path) -> None:
    letters = [*byte_of_character, "ab"]
    model = model_with(tmp_path, "large.gguf", letters, 3)
    check_vocabularies(model, model_with(tmp_path, "small.gguf", letters, 3))
    check_vocabularies(model, model_with(tmp_path, "padded.gguf", [*letters, "unused"], 3))
    swapped = [letters[1], letters[0], *letters[2:]]
    with pytest.raises(ConfigurationError, match=r"other\.gguf has another vocabulary.*token 0"):
        check_vocabularies(model, model_with(tmp_path, "other.gguf", swapped, 3))
    with pytest.raises(ConfigurationError, match="end answers with"):
        check_vocabularies(model, model_with(tmp_path, "ends.gguf", letters, 4))
