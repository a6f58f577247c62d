"""Which answers were good: they finished, and were as quick as their model's objectives say."""

from headrace.ledger.reservation import Outcome
from headrace.spec.models import Objectives

callers_own = frozenset((Outcome.ABORTED, Outcome.REJECTED))  # the platform did nothing wrong


def is_judged(outcome: Outcome) -> bool:
    """Whether a request says anything about the platform."""
    return outcome not in callers_own


def is_good(
    objectives: Objectives | None,
    outcome: Outcome,
    *,
    first_output_s: float | None,
    last_output_s: float | None,
    output_tokens: int,
    streams: bool,
) -> bool:
    """Whether an answer finished within its objectives.

    One that comes whole has no first output of its own: it may take as long as a stream might,
    and without an objective for both parts its time is not judged."""
    if outcome is not Outcome.FINISHED:
        return False
    if objectives is None or first_output_s is None:
        return True
    ttft_s, inter_token_s = objectives.ttft_s, objectives.inter_token_s
    gaps = max(0, output_tokens - 1)
    if not streams:
        is_timed = ttft_s is not None and inter_token_s is not None
        return not is_timed or first_output_s <= (ttft_s or 0.0) + gaps * (inter_token_s or 0.0)
    if ttft_s is not None and first_output_s > ttft_s:
        return False
    if inter_token_s is None or last_output_s is None:
        return True
    return last_output_s - first_output_s <= gaps * inter_token_s
