"""Logical models and their immutable versions."""

import msgspec

from headrace.spec.limits import Limits
from headrace.spec.resource import Resource

api_scheme = "api:"  # of a version that others serve: its name there follows


class WeightedTarget(msgspec.Struct, frozen=True):
    """A share of a model's traffic."""

    model_version_id: str
    weight: int = 1


class Objectives(msgspec.Struct, frozen=True):
    """What a request of a model should take at most, to count as good."""

    ttft_s: float | None = None  # from admission to the first output; None: however long it takes
    inter_token_s: float | None = None  # between two outputs, on average over the answer


class Model(Resource, frozen=True, kw_only=True, tag="model"):
    """A logical name that customers ask for."""

    kind = "model"
    id_prefix = "mod"

    targets: tuple[WeightedTarget, ...] = ()
    active: bool = True
    aliases: tuple[str, ...] = ()  # other names that customers may ask for
    limits: Limits | None = None  # over all callers together
    fallbacks: tuple[str, ...] = ()  # names of models that answer where this one cannot, in order
    objectives: Objectives | None = None  # None: what finishes is good


# What models can that generate no text: whoever serves one asks it for no token.
wordless = frozenset({"embeddings", "rerank", "transcription", "speech", "images"})


class FileHeader(msgspec.Struct, frozen=True):
    """What a model's own file says of it; empty and None: it does not."""

    format: str = ""  # gguf, safetensors
    family: str = ""  # llama, qwen3, bert, ...
    quantization: str = ""  # of most of its weights: Q4_K, BF16, ...
    parameters: int | None = None
    context_length: int | None = None  # the longest that it was made for
    capabilities: tuple[str, ...] = ()  # by its shape and its chat template
    pooling: str = ""  # of an embedding model: mean, first, last, rank
    embedding_size: int | None = None  # numbers of its vectors


class VersionFile(msgspec.Struct, frozen=True):
    """One of the files that a version is made of."""

    name: str  # below the model's directory
    sha256: str
    size_bytes: int


class ChatFormat(msgspec.Struct, frozen=True):
    """How a model writes a conversation: for engines that take a prompt and know no turns."""

    template: str  # Jinja, as the model's publisher has it
    end_token: str = ""  # what the template calls `eos_token`


class ModelVersion(Resource, frozen=True, kw_only=True, tag="model_version"):
    """An immutable version of a model; `parent_id` is the model."""

    kind = "model_version"
    id_prefix = "ver"

    source: str  # a model reference: catalogue name, path, https://, hf://, pypi://, api:NAME
    sha256: str | None = None  # of the file, or over its files' names and digests, where known
    files: tuple[VersionFile, ...] = ()  # once they were read here
    created_by: str = ""  # the caller's name; empty: made before names were kept
    context_length: int | None = None  # where the operator narrows the file's own
    licence: str = ""  # SPDX, or the publisher's name of it
    format: str = ""  # gguf, safetensors
    quantization: str = ""  # Q4_K_M, fp8, ...
    parameters: int | None = None
    chat_template_sha256: str = ""  # of the file's own template, once the file is here
    capabilities: tuple[str, ...] = ()  # chat, tools, vision, or some of `wordless`
    chat_format: ChatFormat | None = None  # as declared
    header: FileHeader | None = None  # once its file was read; what was declared goes before it

    @property
    def abilities(self) -> tuple[str, ...]:
        """What it can do: as declared, else by its file; empty: nothing is known."""
        if self.capabilities or self.header is None:
            return self.capabilities
        return self.header.capabilities

    @property
    def writes_text(self) -> bool:
        """Whether it generates tokens, which is taken for granted where nothing is known."""
        return not self.abilities or not wordless.issuperset(self.abilities)

    @property
    def upstream_name(self) -> str:
        """What engines that others run call it; empty: as the model is called here."""
        return self.source.removeprefix(api_scheme) if self.source.startswith(api_scheme) else ""
