"""What a model's header says that the model is and can do; no weights are read.

The engine's own reading of architectures tells where it knows the family, else GGUF's keys or
config.json do. What a model can do follows from its shape and its chat template:

    no causal attention        embeddings, or rerank where GGUF's pooling says so
    a chat template            chat; tools and reasoning if the template has places for them
    vision_config              vision
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headrace.base.errors import ModelFileError, SourceError
from headrace.protocol.reasoning import reasoning_of_template
from headrace.spec.models import FileHeader, api_scheme
from headrace.weights import catalogue
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.huggingface.directory import config_name, read_json
from headrace.weights.model_file import ModelFile, open_model
from headrace.weights.reference import PathSource, parse_reference
from headrace.weights.tensor import Tensor

gguf, safetensors = "gguf", "safetensors"
template_key = "tokenizer.chat_template"
template_name, tokenizer_config_name = "chat_template.jinja", "tokenizer_config.json"
pooling_names = {1: "mean", 2: "first", 3: "last", 4: "rank"}  # GGUF's pooling_type
rank = 4
family_characters_max = 100  # a file may have anything there
template_bytes_max = 512 * 1024


def local_header(source: str) -> FileHeader | None:
    """The header of a source that lies on this machine; None if it does not, or says nothing."""
    if source.startswith(api_scheme) or catalogue.find(source) is not None:
        return None
    with suppress(SourceError, ModelFileError, OSError):
        parsed = parse_reference(source).source
        if not isinstance(parsed, PathSource):
            return None
        path = Path(parsed.path).expanduser()
        if path.is_file() or path.is_dir():  # a pipe would keep who reads it
            return header_at(path)
    return None


def header_at(path: Path) -> FileHeader:
    """The header of a model file or directory; what cannot be read has its format alone."""
    try:
        with open_model(path) as file:
            return header_of(file)
    except (ModelFileError, OSError):
        return _foreign_header(path)


def header_of(file: ModelFile) -> FileHeader:
    """The header of an open model."""
    metadata, tensors = file.metadata, list(file.tensors.values())
    family = _text(metadata, "general.architecture")[:family_characters_max]
    context_length = _count(metadata.get(f"{family}.context_length"))
    is_encoder = metadata.get(f"{family}.attention.causal") is False
    with suppress(ModelFileError):
        spec = read_architecture(file)
        context_length, is_encoder = spec.context_length, spec.encoder
    pooling = metadata.get(f"{family}.pooling_type") if is_encoder else None
    pooling = pooling if isinstance(pooling, int) else None
    return FileHeader(
        format=safetensors if file.path.is_dir() else gguf,
        family=family,
        quantization=most_of(tensors),
        parameters=sum(tensor.value_count for tensor in tensors) or None,
        context_length=context_length,
        capabilities=(
            ("rerank" if pooling == rank else "embeddings",)
            if is_encoder
            else capabilities_of(_text(metadata, template_key), sees=_sees(file.path))
        ),
        pooling=pooling_names.get(pooling, "") if pooling is not None else "",
        embedding_size=_count(metadata.get(f"{family}.embedding_length")) if is_encoder else None,
    )


def capabilities_of(template: str, *, sees: bool = False) -> tuple[str, ...]:
    """What a model that generates text can do, by its chat template and its eyes."""
    found = ["completions"]
    if template:
        found.append("chat")
    if "tools" in template:
        found.append("tools")
    if reasoning_of_template(template) is not None:
        found.append("reasoning")
    if sees:
        found.append("vision")
    return tuple(found)


def most_of(tensors: list[Tensor]) -> str:
    """The type of most of the weights; empty without any."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.type.name] += tensor.value_count
    return counts.most_common(1)[0][0] if counts else ""


def _foreign_header(path: Path) -> FileHeader:
    """Of a file that headrace's own engine cannot read, and others may."""
    if not path.is_dir():
        with path.open("rb") as file:
            return FileHeader(format=gguf if file.read(4) == b"GGUF" else "")
    if not any(path.glob("*.safetensors")):
        return FileHeader()
    try:
        config = read_json(path / config_name)
    except ModelFileError:
        return FileHeader(format=safetensors)
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    return FileHeader(
        format=safetensors,
        family=_text(config, "model_type")[:family_characters_max],
        context_length=_count(inner.get("max_position_embeddings")),
        capabilities=capabilities_of(_template_at(path), sees=_sees(path))
        if _is_decoder(config)
        else (),
    )


def _is_decoder(config: Mapping[str, object]) -> bool:
    """Whether one of its classes generates text."""
    classes = config.get("architectures")
    names = classes if isinstance(classes, list) else []
    return any(str(name).endswith(("CausalLM", "ConditionalGeneration")) for name in names)


def _template_at(path: Path) -> str:
    """A directory's chat template; empty without one."""
    file = path / template_name
    if file.is_file() and file.stat().st_size <= template_bytes_max:
        return file.read_text(errors="replace")
    if not (path / tokenizer_config_name).is_file():
        return ""
    with suppress(ModelFileError):
        return _text(read_json(path / tokenizer_config_name), "chat_template")
    return ""


def _sees(path: Path) -> bool:
    """Whether a directory's model has a part for images; that of a GGUF is a file of its own."""
    if not path.is_dir():
        return False
    with suppress(ModelFileError):
        return isinstance(read_json(path / config_name).get("vision_config"), dict)
    return False


def _text(values: Mapping[str, object], key: str) -> str:
    value = values.get(key, "")
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 and not isinstance(value, bool) else None
