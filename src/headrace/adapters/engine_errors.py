"""The words in an engine's error answer, whichever of the usual shapes it has.

{"error": {"message", "code", "param", ...}}    OpenAI, llama.cpp, newer vLLM, Ollama
{"error": "words", "error_type": "validation"}  TGI, Triton
{"object": "error", "message", "param", ...}    SGLang, TensorRT-LLM, older vLLM
{"detail": "words"} or {"detail": [{"msg"}]}    FastAPI's own: Transformers, KServe
[{"error": {...}}]                              Gemini
anything else, HTML and nothing at all          no words
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

Json = dict[str, object]

prompt_number_names = ("prompt_tokens", "n_prompt_tokens")
context_number_names = ("max_model_len", "n_ctx")
message_length_max = 500  # of an engine's words that reach a caller
body_bytes_max = 64 * 1024  # of an error body that is read at all


@dataclass(frozen=True, slots=True)
class ErrorWords:
    """What an error body says; empty and None where it does not."""

    message: str = ""
    code: str | int | None = None
    type: str | None = None
    param: str | None = None
    prompt_tokens: int | None = None
    max_model_len: int | None = None
    max_tokens: int | None = None


def read_words(body: bytes) -> ErrorWords:
    """The words of an error body; never fails."""
    try:
        said = msgspec.json.decode(body[:body_bytes_max])
    except (msgspec.DecodeError, RecursionError):
        return ErrorWords()
    if isinstance(said, list) and said:
        said = said[0]
    return _words_of(said) if isinstance(said, dict) else ErrorWords()


def _words_of(said: Json) -> ErrorWords:
    inner = said.get("error")
    if isinstance(inner, dict):
        said = inner
    elif isinstance(inner, str):
        return ErrorWords(inner[:message_length_max], type=_text(said, "error_type"))
    elif "detail" in said and "message" not in said:
        return ErrorWords(_detail(said["detail"])[:message_length_max])
    code = said.get("code")
    return ErrorWords(
        message=(_text(said, "message") or "")[:message_length_max],
        code=code if isinstance(code, str | int) else None,
        type=_text(said, "type"),
        param=_text(said, "param"),
        prompt_tokens=_number(said, prompt_number_names),
        max_model_len=_number(said, context_number_names),
        max_tokens=_number(said, ("max_tokens",)),
    )


def _text(said: Json, name: str) -> str | None:
    value = said.get(name)
    return value if isinstance(value, str) else None


def _number(said: Json, names: Sequence[str]) -> int | None:
    for name in names:
        value = said.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _detail(detail: object) -> str:
    if isinstance(detail, list):
        words = [item["msg"] for item in detail if isinstance(item, dict) and "msg" in item]
        return "; ".join(str(word) for word in words)
    return detail if isinstance(detail, str) else ""


@dataclass(frozen=True, slots=True)
class ContextPattern:
    """How an engine says that a request does not fit; groups `prompt` and `context` are numbers."""

    pattern: re.Pattern[str]

    @classmethod
    def of(cls, expression: str) -> "ContextPattern":
        """Compile the expression, without regard to case."""
        return cls(re.compile(expression, re.IGNORECASE))

    def numbers(self, message: str) -> tuple[int | None, int | None] | None:
        """The prompt's and the context's tokens, where said; None if the message is another."""
        found = self.pattern.search(message)
        if found is None:
            return None
        groups = found.groupdict()
        prompt, context = groups.get("prompt"), groups.get("context")
        return (int(prompt) if prompt else None, int(context) if context else None)
