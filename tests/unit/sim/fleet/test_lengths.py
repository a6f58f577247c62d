"""Lengths that a scenario draws have the statistics that their source published."""

import random
import statistics

import msgspec
import pytest

from headrace.sim.fleet.lengths import Length
from headrace.sim.fleet.scenario import load

draws = 100_000

# scenario, stream, kind: mean, median, 90th and 99th percentile as published; None: not told
published: dict[tuple[str, str, str], tuple[float | None, ...]] = {
    ("sharegpt", "conversations", "fresh"): (None, 1730, 5696, None),
    ("sharegpt", "conversations", "output"): (None, 415, 834, None),
    ("sharegpt", "questions", "fresh"): (161.31, None, None, None),
    ("sharegpt", "questions", "output"): (337.99, None, None, None),
    ("azure-2024-chat", "conversation", "fresh"): (1632, 928, 3830, 6683),
    ("azure-2024-chat", "conversation", "output"): (106, 41, 342, 694),
    ("azure-2024-code", "coding", "fresh"): (2511, 1930, 6251, 7685),
    ("azure-2024-code", "coding", "output"): (23, 8, 43, 271),
}


@pytest.mark.parametrize("key", published, ids="/".join)
def test_a_scenario_draws_what_its_source_tells(key: tuple[str, str, str]) -> None:
    name, stream, kind = key
    traffic = next(each for each in load(name).traffic if each.name == stream)
    length = traffic.fresh if kind == "fresh" else traffic.output
    rng = random.Random(1)
    drawn = sorted(min(length.draw(rng), cap_of(traffic.max_tokens, kind)) for _ in range(draws))
    found = (statistics.fmean(drawn), *(drawn[int(draws * share)] for share in (0.5, 0.9, 0.99)))
    tolerances = (0.1, 0.03, 0.03, 0.03)  # a mean hangs on tails that no percentile tells of
    for value, told, tolerance in zip(found, published[key], tolerances, strict=True):
        assert told is None or value == pytest.approx(told, rel=tolerance, abs=0.5)


def cap_of(max_tokens: int, kind: str) -> int:
    return max_tokens if kind == "output" else 1_000_000


def test_without_a_99th_percentile_the_tail_goes_on_as_the_body() -> None:
    plain, bent = (Length(median=41, p90=342, p99=p99) for p99 in (None, 1924))
    ones, others = random.Random(5), random.Random(5)
    for _ in range(2000):
        assert plain.draw(ones) == pytest.approx(bent.draw(others), rel=0.01, abs=1)


@pytest.mark.parametrize("fields", [{"p90": 40, "p99": 39}, {"p90": 4}, {"p90": 40, "minimum": 0}])
def test_percentiles_out_of_order_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"median": 10, **fields}, Length)
