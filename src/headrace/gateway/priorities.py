"""A request's priority class: what it asks for, and at most what its tenant may use.

`X-Headrace-Priority` names a class; without it OpenAI's `service_tier` of the body does.
"""

import msgspec

from headrace.base.errors import InvalidRequest
from headrace.http.asgi import Scope, header
from headrace.spec.priority import Priority, priorities_by_word
from headrace.spec.tenancy import Tenant

header_name = b"x-headrace-priority"
classes_by_tier = {
    "auto": Priority.STANDARD,
    "default": Priority.STANDARD,
    "standard_only": Priority.STANDARD,  # Anthropic's word
    "priority": Priority.INTERACTIVE,
    "flex": Priority.BATCH,
    "batch": Priority.BATCH,
}


class TierField(msgspec.Struct):
    """The part of a body that counts here."""

    service_tier: str | None = None


_tier = msgspec.json.Decoder(TierField)


def priority_of(scope: Scope, body: bytes, tenant: Tenant) -> Priority:
    """The class of a request; InvalidRequest for a word that names none.

    One that says nothing is `standard`. Asking for more than the tenant may use gives what it
    may: a limit on priority is no reason to fail."""
    word = header(scope, header_name)
    if word is None:
        asked = tier_class(body)
    else:
        found = priorities_by_word.get(word.strip().lower())
        if found is None:
            raise InvalidRequest(
                f"X-Headrace-Priority is one of {', '.join(priorities_by_word)}.",
                param="X-Headrace-Priority",
            )
        asked = found
    return max(asked, tenant.priority_highest)


def tier_class(body: bytes) -> Priority:
    """What the body's `service_tier` asks for; a malformed body is the parser's to refuse."""
    if b'"service_tier"' not in body:
        return Priority.STANDARD
    try:
        tier = _tier.decode(body).service_tier
    except msgspec.DecodeError:
        return Priority.STANDARD
    if tier is None:
        return Priority.STANDARD
    asked = classes_by_tier.get(tier)
    if asked is None:
        raise InvalidRequest(
            f"service_tier is one of {', '.join(classes_by_tier)}.", param="service_tier"
        )
    return asked
