"""What the bytes of one streamed answer tell, found by scanning and not by parsing each chunk.

A load generator that parses JSON for every token measures itself. Per read this looks for text once
(the first token) or only notes the time; the usage is parsed once, from the tail, at the end.
"""

import re
from array import array
from collections import deque
from dataclasses import dataclass, field

import msgspec

# The first text that is not empty: chat's `content`, completions' `text`, reasoning models' text.
text_pattern = re.compile(rb'"(?:content|text|reasoning_content|reasoning)"\s*:\s*"[^"]')
usage_key = b'"usage"'
done_marker = b"data: [DONE]"
data_prefix = b"data:"

tail_bytes = 16_384  # holds the last events, and with them the usage
gaps_max = 65_536  # of one answer; an answer longer than this many reads loses its last gaps
split_bytes = 64  # reads may cut a chunk; so much of those before is looked at again


class PromptDetails(msgspec.Struct, frozen=True):
    """The part of the prompt that came from a cache."""

    cached_tokens: int | None = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts as OpenAI's servers report them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from a cache."""
        details = self.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0


class ErrorText(msgspec.Struct, frozen=True):
    """What went wrong, in words."""

    message: str = ""


class FinalEvent(msgspec.Struct, frozen=True):
    """The parts of an event that matter at the end."""

    usage: Usage | None = None
    error: ErrorText | str | None = None


@dataclass(slots=True)
class StreamScanner:
    """Follows one answer; `push` costs one search of what was read."""

    first_text_s: float | None = None
    last_text_s: float | None = None
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))  # between reads with text
    _before: bytes = b""  # the end of what was read without text
    _tail: deque[bytes] = field(default_factory=deque)
    _tail_length: int = 0

    def push(self, data: bytes, now_s: float) -> None:
        """Take what one read gave at `now_s`."""
        if self.first_text_s is None:
            seen = self._before + data
            self._before = seen[-split_bytes:]
            if text_pattern.search(seen) is not None:
                self.first_text_s = self.last_text_s = now_s
        elif text_pattern.search(data) is not None:
            if len(self.gaps_s) < gaps_max:
                self.gaps_s.append(now_s - (self.last_text_s or now_s))
            self.last_text_s = now_s
        self._tail.append(data)
        self._tail_length += len(data)
        while self._tail_length - len(self._tail[0]) >= tail_bytes:
            self._tail_length -= len(self._tail.popleft())

    def finish(self) -> "StreamEnd":
        """Read the tail: usage, whether the answer was complete, and an error inside it."""
        lines = b"".join(self._tail).splitlines()
        usage = error = None
        for line in reversed(lines):
            if not line.startswith(data_prefix) or (
                usage_key not in line and b'"error"' not in line
            ):
                continue
            try:
                event = msgspec.json.decode(line[len(data_prefix) :], type=FinalEvent)
            except msgspec.DecodeError:
                continue  # the first line of the tail may be cut
            if event.error is not None and error is None:
                error = event.error if isinstance(event.error, str) else event.error.message
            if event.usage is not None:
                usage = event.usage
                break
        complete = any(line.startswith(done_marker) for line in lines[-4:])
        return StreamEnd(usage, complete, error)


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How an answer ended."""

    usage: Usage | None  # None: the server does not report it
    complete: bool  # the end marker came
    error: str | None  # an error inside the stream
