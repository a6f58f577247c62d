"""How a request that did not finish is accounted for: by whose doing it ended."""

from headrace.base.errors import ClientClosed, DeadlineExceeded, HeadraceError, UpstreamFailed
from headrace.ledger.reservation import Outcome


class CallerDeadline(DeadlineExceeded):
    """The time that the caller gave is over."""

    retryable = False


class AnswerTooLarge(UpstreamFailed):
    """The caller asked for more than can be kept for its key; it has what came until then."""

    retryable = False


callers_doing = (ClientClosed, CallerDeadline, AnswerTooLarge)


def caller_deadline(deadline_s: float) -> CallerDeadline:
    """The end of a request that took as long as its caller waits."""
    return CallerDeadline(
        f"The answer was not complete within the {deadline_s:g} s of X-Request-Timeout.",
        timeout_s=deadline_s,
    )


def outcome_of(error: HeadraceError) -> Outcome:
    """Whose doing it was that a request ended early."""
    if isinstance(error, callers_doing):
        return Outcome.ABORTED
    return Outcome.REJECTED if error.http_status < 500 and not error.retryable else Outcome.FAILED
