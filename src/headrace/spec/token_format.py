"""The text form of tokens that programs present, and the digest that is stored; pure functions.

    hrs_<26 characters: the account's id without `svc_`>_<64 hexadecimal digits: the secret>
    hrn_<26 characters: the node's id without `nod_`>_<64 hexadecimal digits: the secret>

Service accounts and nodes have a type each, and API keys one of their own (`api_key_format`): none
is taken for another, and each one's digest is made under a secret for that purpose alone.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from headrace.base.ids import alphabet, body_length
from headrace.spec.accounts import ServiceAccount
from headrace.spec.api_key_format import secret_length
from headrace.spec.nodes import Node
from headrace.spec.purpose_key import purpose_key


class ParsedToken(NamedTuple):
    """The two parts of a presented token."""

    owner_id: str
    secret: str


@dataclass(frozen=True)
class TokenFormat:
    """One type of token: what it begins with, whose it is, and what its digests are for."""

    prefix: str
    id_prefix: str
    purpose: str

    def format(self, owner_id: str, secret: bytes) -> str:
        """Write the token that is shown once."""
        return f"{self.prefix}_{owner_id.removeprefix(f'{self.id_prefix}_')}_{secret.hex()}"

    def parse(self, text: str) -> ParsedToken | None:
        """Split a presented token into id and secret, or None if it has not the shape of one."""
        match = self._pattern.fullmatch(text)
        return match and ParsedToken(f"{self.id_prefix}_{match[1]}", match[2])

    def digest(self, pepper: bytes, secret: str) -> bytes:
        """The digest to store."""
        key = purpose_key(pepper, self.purpose)
        return hmac.digest(key, secret.encode("ascii"), hashlib.sha256)

    def matches(self, pepper: bytes, secret: str, secret_hmac: bytes) -> bool:
        """Whether a presented secret is the stored one, in the same time either way.

        Who has no token yet has an empty digest, which no secret has.
        """
        return hmac.compare_digest(self.digest(pepper, secret), secret_hmac)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        body, secret = f"[{alphabet}]{{{body_length}}}", f"[0-9a-f]{{{secret_length}}}"
        return re.compile(f"{self.prefix}_({body})_({secret})")


service_tokens = TokenFormat("hrs", ServiceAccount.id_prefix, "service account")
node_tokens = TokenFormat("hrn", Node.id_prefix, "node")
