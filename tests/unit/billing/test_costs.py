"""What devices cost, shared out to the last nano-dollar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.money import nanousd_per_usd
from headrace.billing.costs import report_costs, shared_out
from headrace.spec.costs import DevicePrice, DevicePrices, DeviceUse

dollar = nanousd_per_usd


def book(effective_s: float = 0.0, *, per_kwh: int = 0, **dollars_an_hour: float) -> DevicePrices:
    return DevicePrices(
        id=f"dpr_{effective_s}",
        name="prices",
        create_time=effective_s,
        effective_time=effective_s,
        prices={
            name: DevicePrice(
                nanousd_per_hour=round(price * dollar), watts_busy=1000.0, watts_idle=100.0
            )
            for name, price in dollars_an_hour.items()
        },
        nanousd_per_kwh=per_kwh,
    )


def use(
    held_h: float,
    busy_h: float,
    replica: str = "rep_1",
    day: str = "2026-11-01",
    kind: str = "H100",
) -> DeviceUse:
    return DeviceUse(
        day=day,
        replica_id=replica,
        device_type=kind,
        deployment_id="dep_1",
        model="small",
        held_s=held_h * 3600,
        busy_s=busy_h * 3600,
    )


def test_busy_hours_go_to_whoever_they_were_for_and_idle_ones_to_nobody() -> None:
    report = report_costs(
        [use(10, 4)],
        [book(H100=2.0)],
        {"rep_1": {"ten_a": 300, "ten_b": 100}},
        revenue_by_model={"small": 15 * dollar},
        revenue_by_tenant={"ten_a": 15 * dollar},
        revenue_by_replica={"rep_1": 14 * dollar, "rep_elsewhere": dollar},
    )
    assert report.total.cost_nanousd == 20 * dollar
    assert report.total.idle_nanousd == 12 * dollar
    assert report.total.margin_nanousd == -5 * dollar
    assert {line.name: line.cost_nanousd for line in report.tenants} == {
        "": 12 * dollar,
        "ten_a": 6 * dollar,
        "ten_b": 2 * dollar,
    }
    [deployment] = report.deployments
    assert (deployment.device_s, deployment.busy_s) == (36_000, 14_400)
    assert deployment.margin_nanousd == -6 * dollar


def test_energy_is_added_where_it_is_known() -> None:
    report = report_costs(
        [use(10, 4)],
        [book(H100=0.0, per_kwh=dollar // 4)],
        {},
        revenue_by_model={},
        revenue_by_tenant={},
        revenue_by_replica={},
    )
    assert report.total.energy_nanousd == report.total.cost_nanousd == 1_150_000_000  # 4.6 kWh
    assert report.total.idle_nanousd == 150_000_000


def test_a_day_costs_what_was_in_force_when_it_began() -> None:
    noon_of_the_second = 1_793_620_800.0
    report = report_costs(
        [use(1, 0), use(1, 0, day="2026-11-02"), use(1, 0, day="2026-11-03")],
        [book(H100=1.0), book(noon_of_the_second, H100=10.0)],
        {},
        revenue_by_model={},
        revenue_by_tenant={},
        revenue_by_replica={},
    )
    assert report.total.cost_nanousd == 12 * dollar


def test_the_first_price_of_a_type_counts_from_the_day_on_which_it_is_named() -> None:
    noon_of_the_second = 1_793_620_800.0
    report = report_costs(
        [use(1, 0), use(1, 0, day="2026-11-02"), use(1, 0, day="2026-11-03")],
        [book(noon_of_the_second, H100=10.0)],
        {},
        revenue_by_model={},
        revenue_by_tenant={},
        revenue_by_replica={},
    )
    assert report.total.cost_nanousd == 20 * dollar


def test_a_type_without_a_price_is_named() -> None:
    report = report_costs(
        [use(5, 5, kind="B300"), use(1, 1)],
        [book(H100=1.0)],
        {},
        revenue_by_model={"elsewhere": dollar},
        revenue_by_tenant={},
        revenue_by_replica={},
    )
    assert report.unpriced_device_types == ("B300",)
    assert report.total.cost_nanousd == dollar
    assert [line.name for line in report.models] == ["elsewhere", "small"]


@given(st.integers(0, 10**15), st.dictionaries(st.text("abc", min_size=1), st.integers(0, 10**9)))
def test_nothing_is_lost_in_sharing_out(amount: int, tokens: dict[str, int]) -> None:
    parts = shared_out(amount, tokens)
    assert sum(parts.values()) == amount
    whole = sum(tokens.values())
    for name, count in tokens.items():
        if whole:
            assert parts[name] == pytest.approx(amount * count / whole, abs=1.0, rel=1e-9)
