"""The text form of a node's token and the digest that is stored; pure functions.

    hrn_<26 characters: the node's id without `nod_`>_<64 hexadecimal digits: the secret>

Another type than keys of the API and tokens of service accounts: none is taken for another, and
its digest is made under a secret for this purpose alone.
"""

import hashlib
import hmac
import re
from typing import NamedTuple

from headrace.base.ids import alphabet, body_length
from headrace.spec.api_key_format import secret_length
from headrace.spec.nodes import Node
from headrace.spec.service_token_format import purpose_key

token_pattern = re.compile(rf"hrn_([{alphabet}]{{{body_length}}})_([0-9a-f]{{{secret_length}}})")


class ParsedToken(NamedTuple):
    """The two parts of a presented token."""

    node_id: str
    secret: str


def format_token(node_id: str, secret: bytes) -> str:
    """Write the token that is shown once."""
    return f"hrn_{node_id.removeprefix(f'{Node.id_prefix}_')}_{secret.hex()}"


def parse_token(text: str) -> ParsedToken | None:
    """Split a presented token into id and secret, or None if it has not the shape of one."""
    match = token_pattern.fullmatch(text)
    return match and ParsedToken(f"{Node.id_prefix}_{match[1]}", match[2])


def hash_token_secret(pepper: bytes, secret: str) -> bytes:
    """The digest to store."""
    return hmac.digest(purpose_key(pepper, "node"), secret.encode("ascii"), hashlib.sha256)


def token_matches(pepper: bytes, secret: str, secret_hmac: bytes) -> bool:
    """Whether a presented secret is the stored one; a node without one has no agent."""
    if not secret_hmac:
        return False
    return hmac.compare_digest(hash_token_secret(pepper, secret), secret_hmac)
