"""The credential that parts of one platform show each other: derived from the pepper, never stored.

The control plane asks gateways for signals and decisions with it. Whoever knows the pepper could
forge API keys anyway, so no further secret has to be made, kept and distributed.
"""

import hmac
from hashlib import sha256

purpose = b"headrace platform token 1"


def platform_token(pepper: bytes) -> str:
    """The token of the platform that has this pepper."""
    return hmac.new(pepper, purpose, sha256).hexdigest()


def is_platform_token(pepper: bytes, presented: str) -> bool:
    """Whether somebody showed it; in constant time."""
    return hmac.compare_digest(platform_token(pepper).encode(), presented.encode())
