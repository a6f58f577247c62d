"""Takes secrets out of text that leaves the machine: those that are known, and what looks like one.

Whoever writes a log should put none in; this is for the one that did.
"""

import re
from collections.abc import Iterable

hidden = b"(hidden)"
known_length_min = 8  # shorter ones would take ordinary words out

patterns = (
    re.compile(rb"(hr[sn]?_[0-9a-z]{26}_)[0-9A-Za-z]{16,}"),  # our keys and tokens, cut to the id
    re.compile(rb"(?i)((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(rb"([a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@/]+(?=@)"),  # a password in an address
    re.compile(
        rb"(?i)([\"']?[a-z0-9_-]*(?:password|passwd|secret|api[_-]?key|token|credential)[\"']?"
        rb"\s*[=:]\s*[\"']?)[^\s\"',;&}]{8,}"
    ),
    re.compile(
        rb"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
    ),
    re.compile(rb"(\b(?:sk|whsec|rk)[_-](?:[a-z]+[_-])?)[A-Za-z0-9+/=_-]{16,}"),  # others' keys
)


class Redactor:
    """Cleans texts of one bundle."""

    def __init__(self, known: Iterable[bytes]) -> None:
        """`known` are secrets of this platform, in every form in which they may stand somewhere."""
        long_ones = {secret for secret in known if len(secret) >= known_length_min}
        self._known = sorted(long_ones, key=len, reverse=True)  # one may hold another

    def clean(self, text: bytes) -> bytes:
        """The text without secrets."""
        for secret in self._known:
            text = text.replace(secret, hidden)
        for pattern in patterns:
            text = pattern.sub(rb"\1" + hidden, text)
        return text
