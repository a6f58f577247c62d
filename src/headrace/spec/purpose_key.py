"""Secrets for one purpose each, derived from the server's pepper."""

import hashlib
import hmac

from headrace.spec.api_key_format import pepper_bytes


def purpose_key(pepper: bytes, purpose: str) -> bytes:
    """A secret for one purpose alone, derived from the server's pepper (HKDF's expand step)."""
    if len(pepper) < pepper_bytes:
        raise ValueError(f"the pepper needs {pepper_bytes} bytes, not {len(pepper)}")
    return hmac.digest(pepper, b"headrace " + purpose.encode() + b"\x01", hashlib.sha256)
