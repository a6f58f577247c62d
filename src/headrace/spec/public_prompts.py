"""Prompts that an operator marks public: what prompts begin with in common with one, tenants share.

    {"messages": [{"role": "system", "content": "You help the customers of a mill."}]}
    {"prompt": "Once upon a time"}

An object a line, in a file or in a variable. The operator vouches for them: no request can make
anything public.
"""

from collections.abc import Iterable

import msgspec

prompts_max = 256
deployment_bytes_max = 96 * 1024  # as lines: they go to an engine in one variable of its


class PublicMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn at the beginning of a conversation."""

    role: str
    content: str


class PublicPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The beginning of a conversation, or of a text; one of them."""

    messages: tuple[PublicMessage, ...] | None = None
    prompt: str | None = None

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("it needs messages or prompt, and not both")


_decode = msgspec.json.Decoder(PublicPrompt).decode


def lines_of(prompts: Iterable[PublicPrompt]) -> bytes:
    """The prompts, an object a line."""
    return b"\n".join(msgspec.json.encode(prompt) for prompt in prompts)


def read_lines(data: bytes) -> tuple[PublicPrompt, ...]:
    """The prompts of such lines; ValueError says which one is wrong, or that they are too many."""
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) > prompts_max:
        raise ValueError(f"{len(lines)} prompts are too many: {prompts_max} at most")
    return tuple(_read(line, number) for number, line in enumerate(lines, 1))


def _read(line: bytes, number: int) -> PublicPrompt:
    try:
        return _decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"prompt {number}: {error}") from None
