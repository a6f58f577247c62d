"""Credentials that are derived from the pepper, and never stored.

The platform token is what its parts show each other: the control plane asks gateways for signals
and decisions with it. The metrics token opens the metrics of gateways and control planes to a
Prometheus on another machine, and nothing else. Whoever knows the pepper could forge API keys
anyway, so no further secret has to be made, kept and distributed.
"""

import hmac
from hashlib import sha256

platform_purpose = b"headrace platform token 1"
metrics_purpose = b"headrace metrics token 1"


def platform_token(pepper: bytes) -> str:
    """The token of the platform that has this pepper."""
    return hmac.new(pepper, platform_purpose, sha256).hexdigest()


def metrics_token(pepper: bytes) -> str:
    """What a scraper shows to the platform that has this pepper."""
    return hmac.new(pepper, metrics_purpose, sha256).hexdigest()


def is_platform_token(pepper: bytes, presented: str) -> bool:
    """Whether somebody showed it; in constant time."""
    return hmac.compare_digest(platform_token(pepper).encode(), presented.encode())


def is_metrics_token(pepper: bytes, presented: str) -> bool:
    """Whether somebody showed it; in constant time."""
    return hmac.compare_digest(metrics_token(pepper).encode(), presented.encode())
