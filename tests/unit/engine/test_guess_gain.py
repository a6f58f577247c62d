from headrace.engine.guess_gain import (
    GuessGain,
    hopeless_steps,
    pause_steps_min,
    refresh_steps,
    trial_steps,
)


def steps(
    gain: GuessGain, count: int, *, plain_s: float, guessed_s: float, sequences: int = 1
) -> list[bool]:
    """Which of so many steps had guesses, where each of those gives two tokens a sequence."""
    had = []
    for _ in range(count):
        has_guesses = gain.allows(sequences)
        tokens = 2 * sequences if has_guesses else sequences
        seconds = guessed_s if has_guesses else plain_s
        gain.record(sequences, tokens, seconds, has_guesses=has_guesses)
        had.append(has_guesses)
    return had


def test_guesses_that_save_time_go_on_but_for_a_few_steps_to_compare_with() -> None:
    had = steps(GuessGain(), 1000, plain_s=1.0, guessed_s=1.5)
    assert had.count(False) <= 2 + 2 * 1000 // (refresh_steps - trial_steps)


def test_guesses_that_cost_time_become_rare() -> None:
    gain = GuessGain()
    had = steps(gain, 1000, plain_s=1.0, guessed_s=2.2)
    assert had.count(True) <= 6 * trial_steps
    assert had[: trial_steps + 2] == [True] * trial_steps + [False] * 2
    assert steps(gain, 3000, plain_s=1.0, guessed_s=2.2).count(True) <= 3 * trial_steps


def test_guesses_that_cost_far_more_are_given_up_at_once() -> None:
    had = steps(GuessGain(plain_first=True), 30, plain_s=1.0, guessed_s=3.0)
    assert had == [False] * 2 + [True] * hopeless_steps + [False] * 25


def test_what_pays_again_is_taken_up_again() -> None:
    gain = GuessGain()
    steps(gain, 200, plain_s=1.0, guessed_s=2.2)
    assert steps(gain, 2000, plain_s=1.0, guessed_s=1.2)[-50:].count(True) >= 45


def test_batches_of_other_sizes_are_judged_for_themselves() -> None:
    gain = GuessGain()
    steps(gain, 100, plain_s=1.0, guessed_s=2.2, sequences=16)
    assert not gain.allows(16)
    assert gain.allows(1)


def test_what_is_saved_is_known_after_a_trial() -> None:
    gain = GuessGain()
    assert gain.saving_s(1) is None
    steps(gain, trial_steps + pause_steps_min, plain_s=1.0, guessed_s=1.0)
    saving_s = gain.saving_s(1)
    assert saving_s is not None
    assert abs(saving_s - 0.5) < 1e-9
