"""What guessing has cost: credited by the last measurement, corrected by the next."""

import pytest

from headrace.engine.guess_account import GuessAccount, PlainSteps, allowed_share, slack_steps


def measured(seconds: float, sequences: int = 1) -> PlainSteps:
    plain = PlainSteps(2)
    assert plain.add(sequences, seconds, 1) == plain.add(sequences, seconds, 2) == 0
    return plain


def test_one_step_is_no_measurement() -> None:
    plain = PlainSteps(2)
    plain.add(1, 1.0, 1)
    assert not plain.is_known
    assert GuessAccount().allows(1, plain)


def test_what_was_credited_before_anything_was_known_is_charged_by_what_it_costs() -> None:
    plain = PlainSteps(2)
    assert plain.credit_s(1, tokens=2, seconds=5.0) == 5.0
    plain.add(1, 1.0, 2)
    assert plain.add(1, 1.0, 3) == 5.0 - 2 * 1.0


def test_a_machine_that_became_faster_takes_credit_back_and_a_slower_one_gives_none() -> None:
    plain = measured(1.0)
    assert plain.credit_s(1, tokens=3, seconds=2.0) == pytest.approx(3.0)
    plain.add(1, 0.25, 4)
    assert plain.add(1, 0.25, 5) == pytest.approx(3 * 0.75)
    assert plain.unsettled_count == 0
    plain.credit_s(1, tokens=3, seconds=2.0)
    plain.add(1, 4.0, 7)
    assert plain.add(1, 4.0, 8) == 0


def test_steps_of_other_sizes_say_the_least_that_a_step_takes() -> None:
    plain = measured(1.0, sequences=6)
    assert plain.step_s(7) == pytest.approx(1.0)  # it may cost no more
    assert plain.step_s(4) == pytest.approx(4 / 6)  # where rows are all that it costs
    assert plain.credit_s(4, tokens=8, seconds=9.0) == pytest.approx(2 * 4 / 6)


def test_a_debt_stops_guesses_until_steps_without_have_earned_it() -> None:
    plain, account = measured(1.0), GuessAccount()
    account.record(slack_steps + 1 + (1 + allowed_share), 1.0)
    assert not account.allows(1, plain)
    for _ in range(101):
        account.record(1.0, 1.0)
    assert account.allows(1, plain)


def test_gains_are_not_saved_up() -> None:
    account = GuessAccount()
    account.record(1.0, 1000.0)
    account.record(2.0 + (1 + allowed_share), 1.0)
    assert account.debt_s == pytest.approx(2.0)
