"""How a webhook's request proves that it is ours and new: Standard Webhooks 1.0, symmetric.

    webhook-id          the event's id; the same for each attempt, so a receiver can drop repeats
    webhook-timestamp   seconds since the epoch; a receiver refuses what is too old
    webhook-signature   v1,base64(HMAC-SHA256(secret, id "." timestamp "." body))

The secret that a receiver is given is `whsec_` and base64. It is derived, never stored.
"""

import base64
import hashlib
import hmac

from headrace.spec.events import Webhook
from headrace.spec.purpose_key import purpose_key

text_prefix = "whsec_"  # of a secret
tolerance_s = 300


def webhook_secret(pepper: bytes, webhook: Webhook) -> bytes:
    """The signing secret of a webhook; another one after each rotation."""
    key = purpose_key(pepper, "webhook")
    return hmac.digest(key, f"{webhook.id}.{webhook.secret_number}".encode(), hashlib.sha256)


def secret_text(secret: bytes) -> str:
    """The secret as its receiver is given it."""
    return text_prefix + base64.b64encode(secret).decode()


def signed_headers(secret: bytes, event_id: str, wall_s: float, body: bytes) -> dict[str, str]:
    """The headers of one attempt."""
    timestamp = str(int(wall_s))
    return {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{_signature(secret, event_id, timestamp, body)}",
    }


def signature_is_right(secret: bytes, headers: dict[str, str], body: bytes, wall_s: float) -> bool:
    """What a receiver checks; takes the same time whatever is wrong with the signature."""
    event_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(wall_s - int(timestamp)) > tolerance_s:
        return False
    expected = f"v1,{_signature(secret, event_id, timestamp, body)}"
    presented = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(expected, each) for each in presented)


def _signature(secret: bytes, event_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{event_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
