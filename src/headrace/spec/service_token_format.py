"""The text form of a service account's token and the digest that is stored; pure functions.

    hrs_<26 characters: the account's id without `svc_`>_<64 hexadecimal digits: the secret>

It is another type than an API key: neither is ever taken for the other, and their digests are made
under different secrets.
"""

import hashlib
import hmac
import re
from typing import NamedTuple

from headrace.base.ids import alphabet, body_length
from headrace.spec.accounts import ServiceAccount
from headrace.spec.api_key_format import pepper_bytes, secret_length

token_pattern = re.compile(rf"hrs_([{alphabet}]{{{body_length}}})_([0-9a-f]{{{secret_length}}})")


class ParsedToken(NamedTuple):
    """The two parts of a presented token."""

    account_id: str
    secret: str


def format_token(account_id: str, secret: bytes) -> str:
    """Write the token that is shown once."""
    return f"hrs_{account_id.removeprefix(f'{ServiceAccount.id_prefix}_')}_{secret.hex()}"


def parse_token(text: str) -> ParsedToken | None:
    """Split a presented token into id and secret, or None if it has not the shape of one."""
    match = token_pattern.fullmatch(text)
    return match and ParsedToken(f"{ServiceAccount.id_prefix}_{match[1]}", match[2])


def purpose_key(pepper: bytes, purpose: str) -> bytes:
    """A secret for one purpose alone, derived from the server's pepper (HKDF's expand step)."""
    if len(pepper) < pepper_bytes:
        raise ValueError(f"the pepper needs {pepper_bytes} bytes, not {len(pepper)}")
    return hmac.digest(pepper, b"headrace " + purpose.encode() + b"\x01", hashlib.sha256)


def hash_token_secret(pepper: bytes, secret: str) -> bytes:
    """The digest to store."""
    key = purpose_key(pepper, "service account")
    return hmac.digest(key, secret.encode("ascii"), hashlib.sha256)


def token_matches(pepper: bytes, secret: str, secret_hmac: bytes) -> bool:
    """Whether a presented secret is the stored one; takes the same time either way."""
    return hmac.compare_digest(hash_token_secret(pepper, secret), secret_hmac)
