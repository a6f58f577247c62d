"""Billed tokens are compared with what the engines counted, over restarts and with reasons."""

import pytest

from headrace.ledger.reconciliation import Reconciled, reconcile
from headrace.storage.engine_samples import BilledTokens, EngineSample


def sample(
    time_s: float, prompt: int, completion: int, *, of: str = "1", running: int | None = 0
) -> EngineSample:
    return EngineSample(
        replica_id="rep_a",
        sample_time=time_s,
        generation=of,
        prompt_tokens=prompt,
        completion_tokens=completion,
        running_requests=running,
    )


def compared(samples: list[EngineSample], billed: BilledTokens) -> Reconciled:
    (row,) = reconcile({"rep_a": samples}, lambda replica_id, since, until: billed)
    return row


def test_equal_counts_differ_by_nothing() -> None:
    billed = BilledTokens(prompt_tokens=40, completion_tokens=30, requests=4)
    row = compared([sample(1, 100, 50), sample(2, 120, 60), sample(3, 140, 80)], billed)
    assert (row.difference_tokens, row.is_explained, row.reasons) == (0, True, [])


def test_what_was_not_billed_is_a_difference_without_a_reason() -> None:
    row = compared([sample(1, 0, 0), sample(2, 10, 10)], BilledTokens(prompt_tokens=10))
    assert row.difference_tokens == 10
    assert not row.is_explained


def test_classes_that_cancel_out_are_no_equality() -> None:
    billed = BilledTokens(prompt_tokens=15, completion_tokens=5)
    row = compared([sample(1, 0, 0), sample(2, 10, 10)], billed)
    assert row.difference_tokens == 0
    assert not row.is_explained


def test_a_new_process_counts_from_nothing() -> None:
    samples = [sample(1, 100, 100), sample(2, 130, 110), sample(3, 7, 3, of="2")]
    row = compared(samples, BilledTokens(prompt_tokens=37, completion_tokens=13))
    assert row.difference_tokens == 0
    assert "started anew 1 times" in row.reasons[0]


@pytest.mark.parametrize(("running", "word"), [(3, "3 requests ran"), (None, "not known")])
def test_running_requests_are_a_reason(running: int | None, word: str) -> None:
    row = compared([sample(1, 0, 0), sample(2, 9, 9, running=running)], BilledTokens())
    assert row.is_explained
    assert word in row.reasons[0]


def test_what_the_gateway_counted_itself_is_a_reason() -> None:
    row = compared([sample(1, 0, 0), sample(2, 9, 9)], BilledTokens(inexact_requests=2))
    assert row.reasons == ["2 requests were not counted by the engine"]


def test_one_sample_compares_nothing() -> None:
    assert reconcile({"rep_a": [sample(1, 0, 0)]}, lambda *_: BilledTokens()) == []
