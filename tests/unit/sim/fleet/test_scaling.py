"""Replicas that follow the traffic: the rules, and launching and draining."""

import msgspec
import pytest

from headrace.control.load_evidence import Sample
from headrace.sim.fleet.lengths import Length
from headrace.sim.fleet.report import Report
from headrace.sim.fleet.scaler import direction_changes
from headrace.sim.fleet.scaling_rules import (
    EngineLook,
    Look,
    RuleContext,
    ScalingRule,
    knobs_default,
    make_rule,
)
from headrace.sim.fleet.scenario import Objective, Scaling, load
from headrace.sim.fleet.simulation import Simulation


def short_day(rule: str) -> Report:
    scenario = load("scaled-day")
    traffic = msgspec.structs.replace(
        scenario.traffic[0], rate_per_s=2.0, period_s=200.0, fresh=Length(median=8000, p90=9000)
    )
    scenario = msgspec.structs.replace(
        scenario,
        duration_s=200.0,
        fleet=msgspec.structs.replace(scenario.fleet, replicas=2, start_s=5.0),
        traffic=[traffic],
        scaling=msgspec.convert({"rule": rule, "max": 12}, Scaling),
    )
    return Simulation(scenario, 1).run(check_interval_events=50)


@pytest.mark.parametrize("rule", sorted(knobs_default))
def test_a_day_under_each_rule_loses_nothing_and_uses_fewer_devices_than_always_the_most(
    rule: str,
) -> None:
    report = short_day(rule)
    assert report.finished == report.requests > 0
    assert 0.05 < report.device_hours < 12 * 200 / 3600


def look(
    now_s: float,
    ongoing: int,
    replicas: int,
    *,
    starting: int = 0,
    engines: tuple[EngineLook, ...] = (),
) -> Look:
    sample = Sample(
        time_s=now_s,
        tokens_per_s=0.0,
        waiting_requests=0,
        waiting_tokens=0,
        in_flight_requests=ongoing,
        kv_share=0.0,
        first_tokens=(),
        active_replicas=replicas - starting,
        lead_s=60.0,
    )
    return Look(sample, replicas, starting, engines)


def rule_of(rule: str, knob: float, arrivals: tuple[tuple[float, int], ...] = ()) -> ScalingRule:
    scenario = load("scaled-day")
    scaling = msgspec.convert({"rule": rule, "max": 40, "knob": knob}, Scaling)
    objective = Objective(ttft_s=1.0, tpot_s=0.1)
    return make_rule(RuleContext(scaling, objective, scenario.device, 60.0, arrivals))


def test_hpa_keeps_within_its_tolerance_doubles_at_most_and_holds_for_five_minutes() -> None:
    rule = rule_of("hpa", 10.0)
    assert rule.wanted(look(0.0, 43, 4)) == 4
    assert rule.wanted(look(15.0, 800, 4)) == 8
    assert rule.wanted(look(16.0, 10, 8)) == 8, "not before its period"
    assert rule.wanted(look(30.0, 10, 8)) == 8, "as many were needed lately"
    assert rule.wanted(look(330.0, 10, 8)) == 1


def test_kpa_goes_up_in_a_panic_and_not_down_until_it_is_over() -> None:
    rule = rule_of("kpa", 10.0)
    for second in range(0, 60, 2):
        assert rule.wanted(look(float(second), 20, 2)) == 2
    assert rule.wanted(look(60.0, 200, 2)) == 4
    assert [rule.wanted(look(float(s), 10, 8)) for s in (62, 80, 110)] == [8, 8, 8]
    assert rule.wanted(look(180.0, 10, 8)) == 4, "half at once at most"


def test_apa_goes_up_at_once_and_down_after_its_cool_down() -> None:
    rule = rule_of("apa", 10.0)
    assert rule.wanted(look(0.0, 60, 4)) == 6
    assert rule.wanted(look(2.0, 10, 6)) == 6
    assert rule.wanted(look(302.0, 10, 6)) == 3


def test_the_planner_takes_one_step_while_nothing_starts() -> None:
    rule = rule_of("planner", 0.5)
    late, early = EngineLook(50_000, 10, 10_000), EngineLook(0, 1, 100)
    assert rule.wanted(look(0.0, 20, 2, engines=(late, late))) == 3
    assert rule.wanted(look(10.0, 20, 3, starting=1, engines=(late, late))) == 3
    assert rule.wanted(look(20.0, 20, 3, engines=(late, late, early))) == 3
    assert rule.wanted(look(30.0, 2, 3, engines=(early, early, early))) == 2


def test_the_clairvoyant_starts_what_will_be_needed_when_it_is_up() -> None:
    arrivals = tuple((float(second), 1000) for second in range(300, 600))
    rule = rule_of("clairvoyant", 500.0, arrivals)
    counts = {second: rule.wanted(look(float(second), 0, 1)) for second in (100, 240, 400)}
    assert counts == {100: 0, 240: 2, 400: 2}


def test_turns_are_counted_and_steps_in_one_direction_are_not() -> None:
    assert direction_changes([1, 2, 2, 4, 3, 3, 2, 5]) == 2
    assert direction_changes([3, 3, 3]) == 0
