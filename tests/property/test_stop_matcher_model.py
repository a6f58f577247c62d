"""The stop matcher against a slow and obvious one."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.tokenizer.stop_matcher import StopMatcher

letters = st.text("ab\n🎉", max_size=40)
stops_lists = st.lists(st.text("ab\n🎉", min_size=1, max_size=6), max_size=5)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """At the first character that completes any stop, cut the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def live(text: str, stops: list[str]) -> int:
    """The longest end of the text that a stop begins with."""
    lengths = [
        length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])
    ]
    return max(lengths, default=0)


@given(text=letters, stops=stops_lists, places=st.lists(st.integers(0, 40), max_size=8))
def test_every_cutting_gives_the_text_before_the_first_stop(
    text: str, stops: list[str], places: list[int]
) -> None:
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    matcher = StopMatcher(stops)
    emitted = ""
    matched = None
    for index in range(len(bounds) - 1):
        result = matcher.push(text[bounds[index] : bounds[index + 1]])
        emitted += result.text_to_emit
        matched = result.matched
        if matched is not None:
            break
        seen = text[: bounds[index + 1]]
        assert emitted == seen[: len(seen) - live(seen, stops)]
    assert (emitted + matcher.finish(), matched) == expected(text, stops)
