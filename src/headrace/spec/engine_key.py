"""The key that an engine of ours asks for: it follows from the pepper and is stored nowhere.

The store has a salt of each launch, which is no secret: with a copy of the store alone nobody can
ask an engine. Whatever holds the pepper computes the key: the control plane and the gateways.
"""

import hashlib
import hmac

from headrace.spec.deployments import Replica
from headrace.spec.purpose_key import purpose_key

salt_bytes = 16  # random, so that no two launches of a replica share a key


def engine_key(pepper: bytes, replica_id: str, salt: str) -> str:
    """The key of one launch of a replica, 64 hexadecimal digits."""
    key = purpose_key(pepper, "engine key")
    return hmac.digest(key, f"{replica_id}.{salt}".encode(), hashlib.sha256).hex()


def engine_key_of(pepper: bytes, replica: Replica) -> str:
    """The key of a replica's present launch; empty: its engine asks for none."""
    if not replica.engine_key_salt:
        return replica.engine_key
    return engine_key(pepper, replica.id, replica.engine_key_salt)
