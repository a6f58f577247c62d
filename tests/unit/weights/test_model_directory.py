"""Directories in Hugging Face's layout: opened as GGUF files are, refused by name where wrong."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ModelFileError, SourceError
from headrace.sim.progress import SilentProgress
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf
from headrace.weights.gguf_writer import write_gguf
from headrace.weights.model_file import open_model
from headrace.weights.quantize import quantize_model
from headrace.weights.sources import resolve
from headrace.weights.tensor import TensorType

tokenizers = pytest.importorskip("tokenizers")
config: dict[str, Any] = {
    **{"model_type": "qwen2", "hidden_size": 8, "intermediate_size": 16, "vocab_size": 300},
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
    **{"rope_theta": 5000.0, "eos_token_id": [1, 2]},
}
layer = "model.layers.0."
shapes: dict[str, tuple[int, ...]] = {
    **{"model.embed_tokens.weight": (300, 8), "model.norm.weight": (8,)},
    **{f"{layer}self_attn.{name}_proj.weight": (8, 8) for name in "qo"},
    **{f"{layer}self_attn.{name}_proj.weight": (4, 8) for name in "kv"},
    **{f"{layer}mlp.{name}_proj.weight": (16, 8) for name in ("gate", "up")},
    f"{layer}mlp.down_proj.weight": (8, 16),
    **{f"{layer}{name}_layernorm.weight": (8,) for name in ("input", "post_attention")},
}


def safetensors_bytes(names: list[str], **changes: Any) -> bytes:
    header, data = {}, b""
    for name in names:
        values = np.full(shapes[name], 0.5, np.float32).tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": shapes[name],
            "data_offsets": [len(data), len(data) + len(values)],
        } | changes
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def scaling(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, **settings}}


def split_steps(pattern: str, *, removes_rest: bool = False) -> list[Any]:
    pre = tokenizers.pre_tokenizers
    behavior = ("removed", True) if removes_rest else ("isolated", False)
    return [
        pre.Split(tokenizers.Regex(pattern), *behavior),
        pre.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def byte_level_steps(*, cuts_digits: bool) -> list[Any]:
    pre = tokenizers.pre_tokenizers
    digits = [pre.Digits(individual_digits=True)] if cuts_digits else []
    return [*digits, pre.ByteLevel(add_prefix_space=False)]


def write_tokenizer(path: Path, pattern: str | list[Any], *, ignore_merges: bool = False) -> Any:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=ignore_merges))
    pre = tokenizers.pre_tokenizers
    steps = split_steps(pattern) if isinstance(pattern, str) else pattern
    trained.pre_tokenizer = pre.Sequence(steps)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre.ByteLevel.alphabet(),
    )
    trained.train_from_iterator(
        ["the weir and the race, 1234 wheels HelloWorld WEIRwheel's x/y:/\n/z"] * 4, trainer
    )
    trained.save(str(path / "tokenizer.json"))
    return trained


turned = {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}}
qwen2_pattern = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
o200k_pattern = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|"
    r"'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|"
    r"'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
tekken_pattern = o200k_pattern.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
llama3_pattern = qwen2_pattern.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(weights: bytes | None = None, **changes: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        data = safetensors_bytes(list(shapes)) if weights is None else weights
        (tmp_path / "model.safetensors").write_bytes(data)
        return tmp_path

    return write


def test_a_directory_reads_as_a_file_does(write: Write) -> None:
    with open_model(write()) as file:
        spec = read_architecture(file)
        assert file.tensors["blk.0.ffn_down.weight"].shape == (8, 16)
    assert (spec.family, spec.hidden_size, spec.num_kv_heads) == ("qwen2", 8, 1)
    assert spec.rope_theta == 5000.0
    assert spec.tied_output


def test_angles_that_a_file_stores_are_passed_over(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{layer}self_attn.rotary_emb.inv_freq"
    monkeypatch.setitem(shapes, name, (2,))
    with open_model(write()) as file:
        assert read_architecture(file).num_layers == 1
        assert not any("rotary" in each for each in file.tensors)


def test_weights_in_several_files_are_one_model(write: Write) -> None:
    path = write(b"")
    names = list(shapes)
    (path / "model.safetensors").unlink()
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for part, held in parts.items():
        (path / part).write_bytes(safetensors_bytes(held))
    places = {name: part for part, held in parts.items() for name in held}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with open_model(path) as file:
        assert read_architecture(file).num_layers == 1


def test_an_index_may_not_lead_out_of_the_directory(write: Write) -> None:
    path = write()
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="not a file beside the index"), open_model(path):
        pass


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data_offsets": [0, 1 << 40]}, "tensor"),
        ({"data_offsets": [4, 0]}, "tensor"),
        ({"shape": [-1]}, "tensor"),
        ({"dtype": "F8_E4M3"}, "tensor"),
        ({"shape": "x"}, "header"),
    ],
)
def test_a_bad_safetensors_header_is_refused(
    write: Write, changes: dict[str, Any], field: str
) -> None:
    path = write(safetensors_bytes(["model.norm.weight"], **changes))
    with pytest.raises(ModelFileError) as raised, open_model(path):
        pass
    assert str(raised.value.fields["field"]).startswith(field)


@pytest.mark.parametrize("data", [b"", b"\1", b"\xff" * 8, struct.pack("<Q", 2) + b"[]"])
def test_what_is_no_safetensors_file_is_refused(write: Write, data: bytes) -> None:
    with pytest.raises(ModelFileError), open_model(write(data)):
        pass


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "other"}}, "rope_scaling"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({"quantization_config": turned}, "transform_config"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"swiglu_limit": 5.0}, "swiglu_limit"),
        ({"num_hidden_layers": 10**200, "use_sliding_window": True}, "num_hidden_layers"),
        ({"head_dim": 10**200, **scaling("llama3")}, "head_dim"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rms_norm_eps": 10**400}, "qwen2.attention.layer_norm_rms_epsilon"),
        ({"num_key_value_heads": True}, "heads"),
        ({"rope_parameters": {"full_attention": 3}}, "full_attention"),
        (scaling("llama3", low_freq_factor=0), "low_freq_factor"),
        (scaling("llama3", low_freq_factor=4), "high_freq_factor"),
        (scaling("linear", factor=-2), "factor"),
        (scaling("yarn", original_max_position_embeddings=0), "original_max_position_embeddings"),
        (scaling("yarn", factor=2, truncate=False), "truncate"),
        (scaling("longrope", factor=2, long_factor=["", 1]), "long_factor"),
        ({"model_type": "llama", "num_attention_heads": 3}, "tensor blk.0.attn_q.weight"),
    ],
)
def test_what_is_not_computed_is_named(write: Write, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError) as raised, open_model(write(**changes)) as file:
        read_architecture(file)
    assert raised.value.fields["field"] == field


@pytest.mark.parametrize(
    ("pattern", "ignore_merges", "name"),
    [
        (qwen2_pattern, False, "qwen2"),
        (llama3_pattern, False, "smaug-bpe"),
        (llama3_pattern, True, "llama-bpe"),
        (qwen2_pattern, True, "qwen2"),
        (o200k_pattern, False, "gpt-4o"),
        (o200k_pattern, True, "gpt-4o"),
        (tekken_pattern, True, "tekken"),
        (split_steps(llama3_pattern, removes_rest=True), False, "smaug-bpe"),  # of tiktoken's
        (split_steps(o200k_pattern, removes_rest=True), False, "gpt-4o"),
        (byte_level_steps(cuts_digits=False), False, "gpt-2"),
        (byte_level_steps(cuts_digits=True), False, "smollm"),
    ],
)
def test_the_tokenizer_gives_the_ids_of_its_own_library(
    write: Write, tmp_path: Path, pattern: str | list[Any], ignore_merges: bool, name: str
) -> None:
    path = write()
    oracle = write_tokenizer(path, pattern, ignore_merges=ignore_merges)
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with open_model(path) as file:
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
        assert file.metadata["tokenizer.ggml.pre"] == name
        write_gguf(tmp_path / "same.gguf", file.metadata, [])
    with open_gguf(tmp_path / "same.gguf") as copy:
        copied = Tokenizer.from_gguf_metadata(copy.metadata)
    for text in (
        "the weir, 1234!",
        "HelloWorld WEIRwheel's x/y:/\n/z It'Ll",
        "  two\n\n lines's",
        "größe 東京 🙂",
        "<|endoftext|>x",
    ):
        assert tokenizer.encode(text, parse_special=True) == oracle.encode(text).ids
        assert copied.encode(text, parse_special=True) == oracle.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids >= {1, 2}
    assert tokenizer.chat_template is not None


def test_every_row_of_the_embedding_has_a_token(write: Write) -> None:
    path = write()
    write_tokenizer(path, qwen2_pattern)
    with open_model(path) as file:
        texts, kinds = (file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
        assert isinstance(texts, list)
        assert isinstance(kinds, np.ndarray)
        assert len(texts) == len(kinds) == config["vocab_size"]
        assert (texts[-1], kinds[-1]) == ("[PAD299]", 5)
        tokenizer = Tokenizer.from_gguf_metadata(file.metadata)
    assert 299 not in tokenizer.encode("[PAD299]", parse_special=True)


def test_letters_and_their_marks_become_one_where_the_tokenizer_does_that(write: Write) -> None:
    path = write()
    oracle = write_tokenizer(path, qwen2_pattern)
    text = "gro\u0308\u00dfe cafe\u0301"
    with open_model(path) as file:
        plain = Tokenizer.from_gguf_metadata(file.metadata)
    assert plain.encode(text) == oracle.encode(text).ids
    oracle.normalizer = tokenizers.normalizers.NFC()
    oracle.save(str(path / "tokenizer.json"))
    with open_model(path) as file:
        composing = Tokenizer.from_gguf_metadata(file.metadata)
    assert composing.encode(text) == oracle.encode(text).ids != plain.encode(text)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"merges": [["a", 1]]}, "merges"),
        ({"vocab": {"a": 1.5}}, "vocab"),
        ({"type": "Unigram", "vocab": [["a", 0.5], 7]}, "vocab"),
        ({"type": "Unigram", "vocab": [["a", float("nan")]]}, "vocab"),
        ({"byte_fallback": True, "merges": [3]}, "normalizer"),
    ],
)
def test_a_tokenizer_of_other_things_than_text_is_refused(
    write: Write, changes: dict[str, Any], field: str
) -> None:
    path = write()
    write_tokenizer(path, qwen2_pattern)
    file = path / "tokenizer.json"
    read = json.loads(file.read_text())
    file.write_text(json.dumps(read | {"model": read["model"] | changes}))
    with pytest.raises(ModelFileError) as raised, open_model(path):
        pass
    assert raised.value.fields["field"] == field


@pytest.mark.parametrize("template", [[True], [{"name": ["default"]}], 3])
def test_a_chat_template_that_is_none_is_passed_over(write: Write, template: Any) -> None:
    path = write()
    write_tokenizer(path, qwen2_pattern)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with open_model(path) as file:
        assert "tokenizer.chat_template" not in file.metadata


def test_an_unknown_way_to_cut_text_is_refused(write: Write) -> None:
    path = write()
    write_tokenizer(path, r"\w+|\W+")
    with pytest.raises(ModelFileError, match="cutting text by"), open_model(path):
        pass


def test_a_directory_is_a_reference(write: Write, tmp_path: Path) -> None:
    path = write()
    cache = tmp_path / "cache"
    first = resolve(str(path), cache, SilentProgress())
    assert first.path == path
    assert resolve(f"{path}#sha256={first.sha256}", cache, SilentProgress()) == first
    write(rms_norm_eps=1e-5)
    assert resolve(str(path), cache, SilentProgress()).sha256 != first.sha256


def test_a_directory_without_a_model_is_no_reference(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"config\.json"):
        resolve(str(tmp_path), tmp_path / "cache", SilentProgress())


def test_a_directory_becomes_a_file_with_the_same_answers_to_the_reader(
    write: Write, tmp_path: Path
) -> None:
    path = write(rms_norm_eps=2**-20)  # a number that single precision has
    write_tokenizer(path, qwen2_pattern)
    made = tmp_path / "made.gguf"
    with open_model(path) as source:
        quantize_model(source, made, TensorType.F16, SilentProgress())
        spec, tokenizer = read_architecture(source), Tokenizer.from_gguf_metadata(source.metadata)
    with open_model(made) as file:
        assert read_architecture(file) == spec
        again = Tokenizer.from_gguf_metadata(file.metadata)
    text = "the weir, 1234!<|im_end|>"
    assert again.encode(text, parse_special=True) == tokenizer.encode(text, parse_special=True)
    assert again.eos_ids == tokenizer.eos_ids
