"""The text form of an API key and the digest that is stored in its place; pure functions.

    hr_<26 characters: the key id without `key_`>_<64 hexadecimal digits: the secret>

The shape is checked before any look-up, and the fixed prefix lets secret scanners find leaks.
"""

import hashlib
import hmac
import re
from typing import NamedTuple

from headrace.base.ids import alphabet, body_length
from headrace.spec.tenancy import ApiKey

pepper_bytes = 32  # of the server's secret, which is kept apart from the store
secret_bytes = 32  # 256 random bits; no dictionary attack applies, so one HMAC is enough
secret_length = secret_bytes * 2

key_pattern = re.compile(rf"hr_([{alphabet}]{{{body_length}}})_([0-9a-f]{{{secret_length}}})")


class ParsedKey(NamedTuple):
    """The two parts of a presented key."""

    key_id: str
    secret: str


def format_key(key_id: str, secret: bytes) -> str:
    """Write the key that its owner is shown once. `secret` is `secret_bytes` random bytes."""
    prefix = f"{ApiKey.id_prefix}_"
    text = f"hr_{key_id.removeprefix(prefix)}_{secret.hex()}"
    if not key_id.startswith(prefix) or parse_key(text) is None:
        raise ValueError(f"not an API key id and {secret_bytes} bytes: {key_id!r}")
    return text


def parse_key(text: str) -> ParsedKey | None:
    """Split a presented key into id and secret, or None if it has not the shape of one."""
    match = key_pattern.fullmatch(text)
    return match and ParsedKey(f"{ApiKey.id_prefix}_{match[1]}", match[2])


def hash_secret(pepper: bytes, secret: str) -> bytes:
    """The digest to store: HMAC-SHA256 of the secret's text under the server's pepper."""
    if len(pepper) < pepper_bytes:
        raise ValueError(f"the pepper needs {pepper_bytes} bytes, not {len(pepper)}")
    return hmac.digest(pepper, secret.encode("ascii"), hashlib.sha256)


def secret_matches(pepper: bytes, secret: str, secret_hmac: bytes) -> bool:
    """Whether a presented secret is the stored one; takes the same time either way."""
    return hmac.compare_digest(hash_secret(pepper, secret), secret_hmac)
