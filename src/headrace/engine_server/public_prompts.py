"""Prompts that an operator marks public: what requests begin with like one of them, all share.

A system message that all tenants send is computed once for all of them, and nobody learns more from
its time than that it is public. The operator vouches for it: no request can make anything public.
"""

from pathlib import Path

import msgspec

from headrace.base.errors import ConfigurationError, InvalidRequest
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.template_file import with_template
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.model_file import open_model

file_bytes_max = 4 * 1024 * 1024
prompts_max = 256


class PublicPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file: the beginning of a conversation, or of a text."""

    messages: list[dict[str, str]] | None = None
    prompt: str | None = None


_decode = msgspec.json.Decoder(PublicPrompt).decode


def read_public_prompts(config: EngineConfig) -> tuple[tuple[int, ...], ...]:
    """Their tokens; none without a file. ConfigurationError names the line that is wrong."""
    if config.public_prompts_path is None:
        return ()
    path = Path(config.public_prompts_path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--public-prompts {path} cannot be read: {error}") from None
    lines = [line for line in data.splitlines() if line.strip()]
    if len(data) > file_bytes_max or len(lines) > prompts_max:
        raise ConfigurationError(
            f"--public-prompts {path} is too large: {file_bytes_max:,} bytes and {prompts_max} "
            "prompts at most."
        )
    with open_model(Path(config.model_path)) as file:
        metadata = with_template(file.metadata, config.chat_template_path)
        tokenizer = Tokenizer.from_gguf_metadata(metadata)
    return tuple(_tokens(line, tokenizer, number, path) for number, line in enumerate(lines, 1))


def _tokens(line: bytes, tokenizer: Tokenizer, number: int, path: Path) -> tuple[int, ...]:
    try:
        item = _decode(line)
        if (item.messages is None) == (item.prompt is None):
            raise InvalidRequest("it needs messages or prompt, and not both")
        if item.prompt is not None:
            ids = tokenizer.encode(item.prompt, add_special=True, parse_special=True)
        else:
            ids = tokenizer.encode_chat(item.messages or [], add_generation_prompt=False)
    except (msgspec.DecodeError, InvalidRequest, RecursionError, UnicodeDecodeError) as error:
        text = error.message if isinstance(error, InvalidRequest) else str(error)
        raise ConfigurationError(f"--public-prompts {path}, prompt {number}: {text}") from None
    return tuple(ids)
