"""Reads one call as a model writes it, character by character, so that arguments can be streamed.

The call is `{"name": ..., "arguments": {...}}` (some models say `parameters`), or, with the name
known beforehand, the arguments alone. Arguments pass on byte for byte as the model wrote them.
"""

import json
from enum import Enum

name_keys = frozenset({"name"})
arguments_keys = frozenset({"arguments", "parameters"})
blank = " \t\n\r"
empty_arguments = "{}"
name_length_max = 256  # characters; what is longer is no function's name
_closers = {"{": "}", "[": "]"}


class ScanState(Enum):
    """Where a scan is."""

    OPEN = "open"
    DONE = "done"  # the call's last character was read
    BROKEN = "broken"  # this is no call


class ValueScanner:
    """Reads one JSON value and knows where it ends; it checks brackets and strings, no more."""

    def __init__(self) -> None:
        self.first = ""  # the first character
        self._pieces: list[str] = []
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False

    @property
    def text(self) -> str:
        """The value so far."""
        return "".join(self._pieces)

    @property
    def is_open(self) -> bool:
        """Whether the value is inside brackets or a string."""
        return bool(self._closers) or self._in_string

    def push(self, character: str) -> ScanState:
        """Read the next character; DONE if it ends a value of brackets or a string."""
        self.first = self.first or character
        self._pieces.append(character)
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                return ScanState.OPEN if self._closers else ScanState.DONE
            return ScanState.OPEN
        if character == '"':
            self._in_string = True
        elif character in _closers:
            self._closers.append(_closers[character])
        elif character in "}]":
            if not self._closers or self._closers.pop() != character:
                return ScanState.BROKEN
            if not self._closers:
                return ScanState.DONE
        return ScanState.OPEN


class CallScanner:
    """One call. After each `push`: `state`, `name`, and `take_arguments()` for what is new."""

    def __init__(self, name: str | None = None) -> None:
        """With a `name` the text is the arguments alone."""
        self.state = ScanState.OPEN
        self.name = name
        self._raw: list[str] = []
        self._bare = name is not None
        self._began = False
        self._key: str | None = None  # of the value that is read or awaited
        self._value: ValueScanner | None = None
        self._expects_key = True
        self._arguments: list[str] = []  # not taken yet
        self._has_arguments = False

    def take_arguments(self) -> str:
        """What of the arguments was read since the last call, once the name is known."""
        if self.name is None:
            return ""
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    @property
    def raw(self) -> str:
        """All that was read."""
        return "".join(self._raw)

    def push(self, character: str) -> ScanState:
        """Read the next character."""
        assert self.state is ScanState.OPEN, "a call that has ended takes nothing more"
        self._raw.append(character)
        self.state = self._push_bare(character) if self._bare else self._push(character)
        if self.state is ScanState.DONE and self.name is None:
            self.state = ScanState.BROKEN
        if self.state is ScanState.DONE and not self._has_arguments:
            self._arguments.append(empty_arguments)
        return self.state

    def _push_bare(self, character: str) -> ScanState:
        if self._value is None:
            if character in blank:
                return ScanState.OPEN
            if character != "{":
                return ScanState.BROKEN
            self._value = ValueScanner()
        self._has_arguments = True
        self._arguments.append(character)
        return self._value.push(character)

    def _push(self, character: str) -> ScanState:
        if self._value is not None:
            return self._push_value(self._value, character)
        if character in blank:
            return ScanState.OPEN
        if not self._began:
            self._began = True
            return ScanState.OPEN if character == "{" else ScanState.BROKEN
        return self._push_between(character)

    def _push_between(self, character: str) -> ScanState:
        """What stands between keys and values."""
        if character == "}":
            return ScanState.BROKEN if self._key is not None else ScanState.DONE
        if character == ":" and self._key is not None:
            self._value = ValueScanner()
        elif character == '"' and self._expects_key:
            self._value = ValueScanner()
            self._value.push(character)
        elif character == "," and not self._expects_key and self._key is None:
            self._expects_key = True
        else:
            return ScanState.BROKEN
        return ScanState.OPEN

    def _push_value(self, value: ValueScanner, character: str) -> ScanState:
        if self._expects_key:
            state = value.push(character)
            if state is ScanState.DONE:
                self._key = _string(value.text)
                self._expects_key = False
                self._value = None
                return ScanState.BROKEN if self._key is None else ScanState.OPEN
            return state
        if not value.first and character in blank:
            return ScanState.OPEN
        if not value.is_open and value.first and character in ",}" + blank:  # a number or a word
            ended = self._end_value(value.text)
            if ended is ScanState.BROKEN or character in blank:
                return ended
            return self._push(character)
        state = value.push(character)
        if self._key in arguments_keys and value.first == "{":
            self._has_arguments = True
            self._arguments.append(character)
        return self._end_value(value.text) if state is ScanState.DONE else state

    def _end_value(self, text: str) -> ScanState:
        """A value of the call is complete: note it if it is the name or arguments not in braces."""
        key, self._key, self._value = self._key, None, None
        if key in name_keys:
            self.name = _string(text)
            if not self.name or len(self.name) > name_length_max:
                return ScanState.BROKEN
        elif key in arguments_keys and not text.startswith("{") and text != "null":
            self._has_arguments = True
            written = _string(text)  # some models write the arguments as a string of JSON
            self._arguments.append((text if written is None else written) or empty_arguments)
        return ScanState.OPEN


def _string(text: str) -> str | None:
    """The string that this JSON text is; None if it is something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
