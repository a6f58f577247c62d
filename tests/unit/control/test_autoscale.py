"""How many replicas traffic asks for."""

import datetime
import random
from itertools import pairwise

import msgspec
import pytest

from headrace.control.autoscale import (
    Claim,
    Outlook,
    Proposal,
    bounds_at,
    propose,
    share_devices,
)
from headrace.control.load_evidence import Sample
from headrace.spec.autoscaling import Autoscaling, ScheduledBounds
from headrace.spec.signals import first_token_bounds_s, inter_token_bounds_s

interval_s = 5.0
quiet = Sample(
    time_s=0.0,
    tokens_per_s=0.0,
    waiting_requests=0,
    waiting_tokens=0,
    in_flight_requests=0,
    kv_share=0.0,
    first_tokens=(),
    active_replicas=1,
    lead_s=30.0,
)
policy = Autoscaling(min=1, max=20, target_tokens_per_s=1000.0, target_utilisation=0.5)


class Trace:
    """One deployment whose replicas start at once, look after look."""

    def __init__(self, policy: Autoscaling, replicas: int = 1) -> None:
        self.policy = policy
        self.outlook = Outlook()
        self.replicas = replicas
        self.now_s = 0.0

    def look(self, **changes: object) -> Proposal:
        self.now_s += interval_s
        fields = {name: getattr(quiet, name) for name in quiet.__dataclass_fields__}
        fields |= {"time_s": self.now_s, "active_replicas": self.replicas} | changes
        proposal = propose(self.policy, self.outlook, Sample(**fields), self.replicas, 0.0)
        self.replicas = proposal.replicas
        return proposal

    def run(self, looks: int, **changes: object) -> list[int]:
        return [self.look(**changes).replicas for _ in range(looks)]


def test_steady_work_gets_the_replicas_that_it_needs_and_keeps_them() -> None:
    trace = Trace(policy)
    counts = trace.run(200, tokens_per_s=2600.0, in_flight_requests=5)
    assert counts[-1] == 6
    assert len(set(counts[20:])) == 1, "steady work changes nothing"


def test_an_hour_of_noisy_steady_work_turns_at_most_twice() -> None:
    trace = Trace(policy)
    noise = random.Random(11)
    counts = [
        trace.look(tokens_per_s=2600.0 * noise.uniform(0.7, 1.3), in_flight_requests=5).replicas
        for _ in range(int(3600 / interval_s))
    ]
    steps = [after - before for before, after in pairwise(counts[12:]) if after != before]
    turns = sum((one > 0) != (other > 0) for one, other in pairwise(steps))
    assert turns <= 2, steps


def test_growing_work_is_met_before_it_comes() -> None:
    trace = Trace(policy)
    lead = []
    for step in range(60):
        tokens_per_s = 500.0 + 50.0 * step
        proposal = trace.look(tokens_per_s=tokens_per_s, in_flight_requests=5)
        lead.append(proposal.forecast_tokens_per_s - tokens_per_s)
    assert min(lead[20:]) > 0
    assert max(lead) <= 500.0 + 50.0 * 60


@pytest.mark.parametrize("lead_s", [60.0, 180.0])
@pytest.mark.parametrize("knows_lead", [True, False])
def test_replicas_that_growing_work_needs_have_started_when_it_comes(
    lead_s: float, knows_lead: bool
) -> None:
    """Without the measured time of a start, the same work comes to too few of them."""
    tight = msgspec.structs.replace(policy, target_utilisation=0.9)
    trace, started = Trace(tight), [1] * int(lead_s / interval_s)
    looks, warm_looks = 240, int(2 * lead_s / interval_s)
    short = 0
    for step in range(looks):
        tokens_per_s = 900.0 + 60.0 * step
        serving = started[step]
        proposal = trace.look(
            tokens_per_s=tokens_per_s,
            in_flight_requests=5,
            active_replicas=serving,
            lead_s=lead_s if knows_lead else 0.0,
        )
        started.append(proposal.replicas)
        if step > warm_looks:
            short += serving * 1000.0 < tokens_per_s
    share = short / (looks - warm_looks)
    assert share < 0.03 if knows_lead else share > 0.15


def test_less_work_takes_replicas_away_only_after_a_while() -> None:
    trace = Trace(policy)
    trace.run(100, tokens_per_s=5000.0, in_flight_requests=5)
    before = trace.replicas
    down_looks = int(policy.down_after_s / interval_s)
    assert set(trace.run(down_looks - 1, tokens_per_s=500.0, in_flight_requests=5)) == {before}
    trace.run(20, tokens_per_s=500.0, in_flight_requests=5)
    assert trace.replicas <= 2


def test_a_short_lull_takes_nothing_away() -> None:
    trace = Trace(policy)
    trace.run(100, tokens_per_s=5000.0, in_flight_requests=5)
    before = trace.replicas
    counts: list[int] = []
    for _ in range(10):
        counts += trace.run(10, tokens_per_s=500.0, in_flight_requests=5)
        counts += trace.run(10, tokens_per_s=5000.0, in_flight_requests=5)
    assert min(counts) >= before


def test_up_is_at_most_twice_or_four_in_one_step() -> None:
    trace = Trace(policy)
    first = trace.look(tokens_per_s=10_000.0, in_flight_requests=5)
    assert first.replicas == 5
    assert "at most 5" in first.reason
    assert trace.look(tokens_per_s=10_000.0, in_flight_requests=5).replicas == 10


def first_tokens(early: int, late: int = 0) -> tuple[int, ...]:
    """Counts of the fastest and of the slowest first tokens."""
    counts = [0] * (len(first_token_bounds_s) + 1)
    counts[0], counts[-1] = early, late
    return tuple(counts)


learning = Autoscaling(min=1, max=100)


def test_half_idle_replicas_are_not_believed_to_be_able_to_do_no_more() -> None:
    """Steady light work must not make a fleet grow."""
    trace = Trace(learning, replicas=4)
    counts = trace.run(
        1000, tokens_per_s=400.0, in_flight_requests=2, first_tokens=first_tokens(early=5)
    )
    assert counts[-1] == 1
    assert max(counts) <= 4


def test_what_a_replica_bears_is_raised_while_first_tokens_come_early() -> None:
    trace = Trace(learning, replicas=4)
    loaded = {"tokens_per_s": 4000.0, "in_flight_requests": 40}
    early = [trace.look(**loaded, first_tokens=first_tokens(early=50)) for _ in range(200)]
    known = [p.capacity_tokens_per_s for p in early if p.capacity_tokens_per_s is not None]
    assert known[-1] > 1.5 * known[0]
    assert early[-1].replicas < 4
    assert known[-1] <= 4000.0 / learning.target_utilisation / 0.75 * 1.5, "only as far as borne"


def test_what_a_replica_bears_is_lowered_once_a_start_where_too_many_come_late() -> None:
    trace = Trace(learning, replicas=4)
    loaded = {"tokens_per_s": 4000.0, "in_flight_requests": 40, "active_replicas": 4}
    late = [
        trace.look(**loaded, first_tokens=first_tokens(early=90, late=10)).capacity_tokens_per_s
        for _ in range(12)
    ]
    known = [capacity for capacity in late if capacity is not None]
    assert known[0] == pytest.approx(0.93 * 1000.0 / learning.target_utilisation)
    assert len(set(known)) == 2, "60 s are two starts of 30 s"
    assert trace.replicas > 4


def after_good_minutes() -> tuple[Trace, float]:
    """A deployment whose first tokens were all early for a while, and what it believes."""
    trace = Trace(learning, replicas=4)
    for _ in range(40):
        busy = {"tokens_per_s": 1000.0 * trace.replicas, "in_flight_requests": 40}
        early = trace.look(**busy, first_tokens=first_tokens(early=100))
    return trace, borne_at(early)


def late_until_cut(trace: Trace, borne: float, tokens_per_s: float) -> tuple[int, float]:
    """How many looks with a tenth late it takes until less is believed, and what."""
    for looks in range(1, 50):
        load = {"tokens_per_s": tokens_per_s * trace.replicas, "in_flight_requests": 40}
        late = trace.look(**load, first_tokens=first_tokens(early=90, late=10))
        if borne_at(late) < borne:
            return looks, borne_at(late)
    raise AssertionError("never cut")


def test_one_bad_moment_takes_back_no_more_than_an_eighth() -> None:
    """What is late now was asked before: the load of a quiet moment is not to blame alone."""
    trace, borne = after_good_minutes()
    _, left = late_until_cut(trace, borne, tokens_per_s=100.0)
    assert left == pytest.approx(0.93 * 0.95 * borne)


def test_a_burst_is_paid_from_what_good_minutes_left_and_a_longer_one_is_not() -> None:
    trace, borne = after_good_minutes()
    replicas = trace.replicas
    for _ in range(2):  # 20 late of some 3,500 lately, of which 35 may be
        burst = trace.look(
            tokens_per_s=1000.0 * replicas,
            in_flight_requests=40,
            first_tokens=first_tokens(early=90, late=10),
        )
    assert borne_at(burst) == pytest.approx(borne)
    assert trace.replicas == replicas
    assert "slo" not in dict(burst.needs)
    looks, _ = late_until_cut(trace, borne, tokens_per_s=1000.0)
    assert looks <= 4
    unproven = Trace(learning, replicas=4)
    unproven.look(**crowded_and_late)
    assert "slo" in dict(unproven.look(**crowded_and_late).needs), "nothing was saved before"


crowded_and_late = {
    "tokens_per_s": 4000.0,
    "in_flight_requests": 40,
    "first_tokens": first_tokens(early=180, late=20),
}


def test_what_was_held_for_an_old_belief_is_given_back_with_it() -> None:
    """Replicas that a low belief asked for are not kept for five minutes once more is borne."""
    outlook = Outlook(bearable_tokens_per_s=500.0)
    work = {name: getattr(quiet, name) for name in quiet.__dataclass_fields__}
    work |= {"tokens_per_s": 4000.0, "in_flight_requests": 40, "active_replicas": 8}

    def look(time_s: float, replicas: int) -> int:
        sample = Sample(**work | {"time_s": time_s, "active_replicas": replicas})
        return propose(learning, outlook, sample, replicas, 0.0).replicas

    for step in range(70):
        assert look(5.0 * step, 8) == 8
    outlook.bearable_tokens_per_s = 1000.0
    assert look(350.0, 8) == 4


def test_many_replicas_try_again_what_was_too_much_for_few() -> None:
    timed = msgspec.structs.replace(learning, target_inter_token_s=0.15)

    def believed(replicas: int) -> float:
        outlook = Outlook(
            bearable_tokens_per_s=900.0, too_much_tokens_per_s=1000.0, too_much_replicas=4
        )
        trace = Trace(timed, replicas)
        trace.outlook = outlook
        for _ in range(6):
            proposal = trace.look(
                tokens_per_s=950.0 * replicas,
                in_flight_requests=10 * replicas,
                active_replicas=replicas,
                first_tokens=first_tokens(early=50),
                inter_tokens=streams(steady=50),
            )
        return borne_at(proposal)

    assert believed(5) == pytest.approx(950.0)
    assert believed(6) > 1000.0


@pytest.mark.parametrize(("guess", "borne"), [(2400.0, 2400.0), (50.0, 1176.0), (None, 1176.0)])
def test_a_first_guess_raises_what_the_first_evidence_shows_and_never_lowers_it(
    guess: float | None, borne: float
) -> None:
    trace = Trace(learning, replicas=4)
    loaded = {"tokens_per_s": 4000.0, "in_flight_requests": 40, "guess_tokens_per_s": guess}
    for _ in range(2):
        unproven = trace.look(**loaded, first_tokens=first_tokens(early=60))
    assert unproven.capacity_tokens_per_s is None, "a guess without evidence starts nothing"
    assert borne_at(trace.look(**loaded, first_tokens=first_tokens(early=60))) == pytest.approx(
        borne, rel=0.2
    )


def test_a_guess_that_was_too_high_is_taken_back() -> None:
    trace = Trace(learning, replicas=4)
    loaded = {"tokens_per_s": 4000.0, "in_flight_requests": 40, "active_replicas": 4}
    trace.look(**loaded, guess_tokens_per_s=3000.0, first_tokens=first_tokens(early=100))
    trace.look(**loaded, guess_tokens_per_s=3000.0, first_tokens=first_tokens(early=100))
    for _ in range(200):
        late = trace.look(
            **loaded, guess_tokens_per_s=3000.0, first_tokens=first_tokens(early=80, late=20)
        )
    assert borne_at(late) < 1000.0


def test_a_guess_that_nobody_has_borne_yet_is_taken_back_in_larger_steps() -> None:
    trace = Trace(learning, replicas=4)
    loaded = {"tokens_per_s": 4000.0, "in_flight_requests": 40, "active_replicas": 4}
    for _ in range(3):
        trace.look(**loaded, guess_tokens_per_s=3000.0, first_tokens=first_tokens(early=60))
    for _ in range(12):
        late = trace.look(**loaded, first_tokens=first_tokens(early=70, late=50))
        if borne_at(late) < 3000.0:
            break
    assert borne_at(late) == pytest.approx(0.93 * 0.8 * 3000.0)


def test_requests_that_are_late_by_themselves_ask_for_nothing() -> None:
    """A prompt that takes too long on an idle replica takes as long on any other."""
    trace = Trace(learning, replicas=4)
    alone = {"tokens_per_s": 40.0, "in_flight_requests": 4}
    counts = trace.run(100, **alone, first_tokens=first_tokens(early=50, late=50))
    assert max(counts) <= 4


def borne_at(proposal: Proposal) -> float:
    """The load of a replica that is believed to be borne."""
    assert proposal.capacity_tokens_per_s is not None
    return proposal.capacity_tokens_per_s * learning.target_utilisation


def streams(steady: int, slow: int = 0) -> tuple[int, ...]:
    """Counts of streams with 8 ms between tokens, and with a quarter of a second."""
    counts = [0] * (len(inter_token_bounds_s) + 1)
    counts[inter_token_bounds_s.index(0.01)] = steady
    counts[inter_token_bounds_s.index(0.3)] = slow
    return tuple(counts)


def test_slow_tokens_lower_what_a_replica_bears_while_first_tokens_are_in_time() -> None:
    timed = msgspec.structs.replace(learning, target_inter_token_s=0.15)
    seen = {
        "tokens_per_s": 4000.0,
        "in_flight_requests": 40,
        "active_replicas": 4,
        "first_tokens": first_tokens(early=100),
        "inter_tokens": streams(steady=90, slow=10),
    }
    untold, told = Trace(learning, replicas=4), Trace(timed, replicas=4)
    for _ in range(12):
        by_first_tokens, by_both = untold.look(**seen), told.look(**seen)
    assert borne_at(by_both) < 1000.0 < borne_at(by_first_tokens)
    assert untold.replicas <= 4 < told.replicas


def test_steady_tokens_raise_what_a_replica_bears_though_long_prompts_come_late_by_themselves() -> (
    None
):
    timed = msgspec.structs.replace(learning, target_inter_token_s=0.15)
    counts = [0] * (len(first_token_bounds_s) + 1)
    counts[first_token_bounds_s.index(learning.target_first_token_s)] = 50  # in time, and not early
    seen = {"tokens_per_s": 4000.0, "in_flight_requests": 40, "first_tokens": tuple(counts)}
    untold, told = Trace(learning, replicas=4), Trace(timed, replicas=4)
    for _ in range(20):
        by_first_tokens = untold.look(**seen)
        by_both = told.look(**seen, inter_tokens=streams(steady=50))
    assert borne_at(by_both) > 1.2 * borne_at(by_first_tokens)


def test_a_load_that_was_too_much_is_not_tried_again_for_half_an_hour() -> None:
    timed = msgspec.structs.replace(learning, target_inter_token_s=0.15)
    trace = Trace(timed, replicas=4)
    loaded = {"tokens_per_s": 4000.0, "in_flight_requests": 40, "active_replicas": 4}
    for _ in range(7):  # a start's time passes before the first cut
        trace.look(
            **loaded, first_tokens=first_tokens(early=100), inter_tokens=streams(steady=80, slow=20)
        )

    def capacity_after(looks: int) -> float:
        for _ in range(looks):
            proposal = trace.look(
                **loaded,
                first_tokens=first_tokens(early=50),
                inter_tokens=streams(steady=50),
            )
        return borne_at(proposal)

    assert capacity_after(300) == pytest.approx(0.95 * 1000.0)
    assert capacity_after(100) > 1000.0


def test_late_first_tokens_and_full_kv_ask_for_more() -> None:
    late = first_tokens(early=60, late=40)
    trace = Trace(policy, replicas=4)
    crowded = {"tokens_per_s": 10.0, "in_flight_requests": 50, "active_replicas": 4}
    trace.look(**crowded, first_tokens=late)
    by_slo = trace.look(**crowded, first_tokens=late)
    assert (by_slo.replicas, by_slo.reason.split(":")[0]) == (6, "slo")
    trace = Trace(policy, replicas=4)
    by_kv = trace.look(tokens_per_s=10.0, in_flight_requests=5, kv_share=0.95)
    assert (by_kv.replicas, by_kv.reason.split(":")[0]) == (5, "kv")


def test_who_waits_for_a_moment_asks_for_nothing_and_who_waits_longer_for_one_more() -> None:
    trace = Trace(policy, replicas=4)
    trace.run(100, tokens_per_s=1900.0, in_flight_requests=20)
    waiting = {"tokens_per_s": 1900.0, "in_flight_requests": 20, "waiting_requests": 1}
    assert trace.look(**waiting).replicas == 4
    assert trace.look(**waiting).replicas == 5


def test_nothing_runs_without_requests_and_one_wakes_it() -> None:
    idle = msgspec.structs.replace(policy, min=0, idle_s=60.0, down_after_s=0.0)
    trace = Trace(idle)
    trace.look(tokens_per_s=100.0, in_flight_requests=1)
    assert trace.run(100)[-1] == 0
    woken = trace.look(waiting_requests=1, waiting_tokens=100, active_replicas=0)
    assert woken.replicas >= 1
    assert trace.look(active_replicas=0).replicas >= 1, "not down again before it served"


@pytest.mark.parametrize(
    ("weekday", "hour", "bounds"),
    [
        (0, 9, (3, 8)),
        (0, 17, (1, 20)),
        (5, 9, (1, 20)),
        (4, 23, (0, 2)),
        (5, 1, (0, 2)),
        (6, 1, (1, 20)),
    ],
)
def test_schedules_change_the_bounds(weekday: int, hour: int, bounds: tuple[int, int]) -> None:
    scheduled = msgspec.structs.replace(
        policy,
        schedule=(
            ScheduledBounds(begins="08:00", ends="17:00", weekdays=(0, 1, 2, 3, 4), min=3, max=8),
            ScheduledBounds(begins="22:00", ends="06:00", weekdays=(4,), min=0, max=2),
        ),
    )
    monday = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
    when = monday + datetime.timedelta(days=weekday, hours=hour)
    assert bounds_at(scheduled, when.timestamp()) == bounds


def test_devices_go_to_minimums_then_by_priority_then_evenly() -> None:
    claims = [
        Claim("batch", wanted=10, min=1, devices=1, priority=10),
        Claim("chat", wanted=6, min=2, devices=2, priority=100),
        Claim("code", wanted=6, min=1, devices=2, priority=100),
    ]
    assert share_devices(claims, None) == {"batch": 10, "chat": 6, "code": 6}
    assert share_devices(claims, 100) == {"batch": 10, "chat": 6, "code": 6}
    assert share_devices(claims, 15) == {"batch": 1, "chat": 4, "code": 3}
    assert share_devices(claims, 5) == {"batch": 1, "chat": 2, "code": 0}
    used = share_devices(claims, 4)
    assert used["chat"] == 2
