"""Good is what finished within its model's objectives, and the caller's own doing is not judged."""

from collections import Counter

import pytest

from headrace.gateway.goodput import is_good
from headrace.gateway.metrics import GatewayCounters, by_model
from headrace.ledger.reservation import Outcome
from headrace.spec.models import Objectives

both = Objectives(ttft_s=0.5, inter_token_s=0.1)


@pytest.mark.parametrize(
    ("objectives", "first_output_s", "last_output_s", "streams", "good"),
    [
        (None, 100.0, 900.0, True, True),
        (both, 0.5, 1.4, True, True),  # ten tokens, nine gaps
        (both, 0.6, 0.7, True, False),
        (both, 0.1, 1.1, True, False),
        (Objectives(ttft_s=0.5), 0.1, 90.0, True, True),
        (Objectives(inter_token_s=0.1), 9.0, 9.8, True, True),
        (both, 1.3, None, False, True),  # comes whole: as long as a stream might take
        (both, 1.5, None, False, False),
        (Objectives(ttft_s=0.5), 9.0, None, False, True),
    ],
)
def test_an_answer_is_good_within_its_objectives(
    objectives: Objectives | None,
    first_output_s: float,
    last_output_s: float | None,
    streams: bool,
    good: bool,
) -> None:
    found = is_good(
        objectives,
        Outcome.FINISHED,
        first_output_s=first_output_s,
        last_output_s=last_output_s,
        output_tokens=10,
        streams=streams,
    )
    assert found is good


def test_callers_who_leave_or_ask_wrongly_count_for_nobody() -> None:
    counters = GatewayCounters()
    for outcome in Outcome:
        counters.judged("demo", outcome, outcome is Outcome.FINISHED)
    assert counters.model_requests["demo"] == 2  # one finished, one failed
    assert counters.model_good_requests["demo"] == 1


def test_only_models_that_exist_are_told_of() -> None:
    assert by_model(Counter(demo=3, deleted=9), ["demo", "new"]) == {"demo": 3.0, "new": 0.0}
