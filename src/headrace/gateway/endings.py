"""How a request that did not finish is accounted for: by whose doing it ended."""

from headrace.base.errors import ClientClosed, DeadlineExceeded, HeadraceError
from headrace.ledger.reservation import Outcome


class CallerDeadline(DeadlineExceeded):
    """The time that the caller gave is over."""

    retryable = False


def outcome_of(error: HeadraceError) -> Outcome:
    """Whose doing it was that a request ended early."""
    if isinstance(error, ClientClosed | CallerDeadline):
        return Outcome.ABORTED
    return Outcome.REJECTED if error.http_status < 500 and not error.retryable else Outcome.FAILED
