"""A request's priority class: what it asks for, and at most what its tenant may use."""

from headrace.base.errors import InvalidRequest
from headrace.http.asgi import Scope, header
from headrace.spec.priority import Priority, priorities_by_word
from headrace.spec.tenancy import Tenant

header_name = b"x-headrace-priority"


def priority_of(scope: Scope, tenant: Tenant) -> Priority:
    """The class of a request; InvalidRequest for a word that names none.

    One that says nothing is `standard`. Asking for more than the tenant may use gives what it
    may: a limit on priority is no reason to fail."""
    word = header(scope, header_name)
    asked = Priority.STANDARD if word is None else priorities_by_word.get(word.strip().lower())
    if asked is None:
        raise InvalidRequest(
            f"X-Headrace-Priority is one of {', '.join(priorities_by_word)}.",
            param="X-Headrace-Priority",
        )
    return max(asked, tenant.priority_highest)
