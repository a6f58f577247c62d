"""Prompts that an operator marks public, as the tokens that requests begin with.

A system message that all tenants send is computed once for all of them, and nobody learns more from
its time than that it is public.
"""

from collections.abc import Iterable
from pathlib import Path

from headrace.base.errors import ConfigurationError, InvalidRequest
from headrace.engine_server.messages import EngineConfig
from headrace.engine_server.template_file import with_template
from headrace.spec.public_prompts import PublicPrompt, read_lines
from headrace.tokenizer.tokenizer import Tokenizer
from headrace.weights.model_file import open_model

file_bytes_max = 4 * 1024 * 1024
option = "--public-prompts"

TokenIds = tuple[int, ...]


def read_public_prompts(config: EngineConfig) -> tuple[TokenIds, ...]:
    """Their tokens; none where none are given. ConfigurationError names the line that is wrong."""
    if config.public_prompts is None:
        return ()
    prompts = public_prompts(config.public_prompts)
    with open_model(Path(config.model_path)) as file:
        metadata = with_template(file.metadata, config.chat_template_path)
        return encode_public_prompts(prompts, Tokenizer.from_gguf_metadata(metadata))


def encode_public_prompts(
    prompts: Iterable[PublicPrompt], tokenizer: Tokenizer
) -> tuple[TokenIds, ...]:
    """The tokens of each; ConfigurationError for one that the model's template has no place for."""
    return tuple(_tokens(prompt, tokenizer, number) for number, prompt in enumerate(prompts, 1))


def public_prompts(given: str | None) -> tuple[PublicPrompt, ...]:
    """What the option says; `given` is a file's path, or the lines that it would have."""
    if given is None:
        return ()
    is_text = given.lstrip().startswith("{")
    where = option if is_text else f"{option} {given}"
    try:
        data = given.encode() if is_text else Path(given).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error}") from None
    if len(data) > file_bytes_max:
        raise ConfigurationError(f"{where} is too large: {file_bytes_max:,} bytes at most.")
    try:
        return read_lines(data)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _tokens(prompt: PublicPrompt, tokenizer: Tokenizer, number: int) -> TokenIds:
    try:
        if prompt.prompt is not None:
            ids = tokenizer.encode(prompt.prompt, add_special=True, parse_special=True)
        else:
            messages = [
                {"role": message.role, "content": message.content}
                for message in prompt.messages or ()
            ]
            ids = tokenizer.encode_chat(messages, add_generation_prompt=False)
    except InvalidRequest as error:
        raise ConfigurationError(f"{option}, prompt {number}: {error.message}") from None
    return tuple(ids)
