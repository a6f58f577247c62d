import pytest

from headrace.base.errors import InvalidRequest
from headrace.tokenizer.stop_matcher import StopMatcher, stops_characters_max


def test_text_without_a_stop_is_emitted_at_once() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("hello ") == ("hello ", None)
    assert matcher.push("world") == ("world", None)
    assert matcher.finish() == ""


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["<stop>"])
    assert matcher.push("a<st") == ("a", None)
    assert matcher.push("x") == ("<stx", None)
    assert matcher.push("<<s") == ("<", None)
    assert matcher.finish() == "<s"


def test_a_stop_over_several_pushes_is_cut_out() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("abcS") == ("abc", None)
    assert matcher.push("TO") == ("", None)
    assert matcher.push("P def") == ("", "STOP")
    assert matcher.push("more") == ("", "STOP")
    assert matcher.finish() == ""


def test_the_stop_that_is_complete_first_wins_whatever_the_order() -> None:
    for stops in (["ccc", "b"], ["b", "ccc"]):
        assert StopMatcher(stops).push("aabccc") == ("aa", "b")


def test_of_two_that_end_together_the_longer_is_cut() -> None:
    for stops in (["\n\nUser", "User"], ["User", "\n\nUser"]):
        assert StopMatcher(stops).push("hi\n\nUser:") == ("hi", "\n\nUser")


def test_a_match_inside_a_longer_failed_one_is_found() -> None:
    assert StopMatcher(["abcd", "bc"]).push("abce") == ("a", "bc")
    assert StopMatcher(["aab"]).push("aaab") == ("a", "aab")


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("abc") == ("abc", None)
    assert matcher.finish() == ""


def test_an_empty_stop_and_endless_ones_are_refused() -> None:
    with pytest.raises(InvalidRequest) as raised:
        StopMatcher(["a", ""])
    assert raised.value.param == "stop"
    with pytest.raises(InvalidRequest):
        StopMatcher(["x" * (stops_characters_max + 1)])
