"""When a second replica is asked: after a fixed time, or by what first outputs took lately."""

from collections.abc import AsyncIterator

import pytest

from headrace.gateway import hedging
from headrace.gateway.borne import BorneAttempts
from headrace.gateway.hedging import Hedger
from headrace.gateway.metrics import GatewayCounters
from headrace.http.client import HttpClient
from headrace.ledger.scopes import scope_ids
from headrace.router.endpoint import EndpointSpec
from headrace.spec.hedging import Hedging
from headrace.spec.settlements import platform_tenant_id


@pytest.fixture
async def hedger() -> AsyncIterator[Hedger]:
    client = HttpClient()
    counters = GatewayCounters()
    yield Hedger(BorneAttempts(client, counters), counters)
    await client.close()


def endpoint(policy: Hedging | None, deployment_id: str = "dep_1") -> EndpointSpec:
    return EndpointSpec("rep_1", "ver_1", "http://x", deployment_id=deployment_id, hedging=policy)


def fill(hedger: Hedger, spec: EndpointSpec, *, shows_progress: bool = True) -> None:
    for hundredth in range(100):
        hedger.observe(spec, hundredth / 100, shows_progress=shows_progress)


async def test_without_a_policy_nobody_else_is_ever_asked(hedger: Hedger) -> None:
    assert hedger.delay_s(endpoint(None), shows_progress=True) is None


async def test_a_fixed_time_is_for_answers_that_show_progress(hedger: Hedger) -> None:
    spec = endpoint(Hedging(after_s=0.5))
    fill(hedger, spec)
    assert hedger.delay_s(spec, shows_progress=True) == 0.5
    assert hedger.delay_s(spec, shows_progress=False) is None


@pytest.mark.parametrize(("after_s", "expected_s"), [(0.5, 0.95), (2.0, 2.0)])
async def test_a_quantile_counts_once_enough_is_known(
    hedger: Hedger, after_s: float, expected_s: float
) -> None:
    spec = endpoint(Hedging(after_s=after_s, first_output_quantile=0.95))
    assert hedger.delay_s(spec, shows_progress=True) == after_s
    fill(hedger, spec)
    assert hedger.delay_s(spec, shows_progress=True) == expected_s
    assert hedger.delay_s(endpoint(spec.hedging, "dep_2"), shows_progress=True) == after_s


async def test_whole_answers_are_late_by_what_whole_answers_took(hedger: Hedger) -> None:
    spec = endpoint(Hedging(after_s=0.0, first_output_quantile=0.5))
    fill(hedger, spec)
    assert hedger.delay_s(spec, shows_progress=False) is None
    fill(hedger, spec, shows_progress=False)
    assert hedger.delay_s(spec, shows_progress=False) == 0.5


async def test_only_the_newest_of_the_newest_deployments_are_kept(
    hedger: Hedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "deployments_max", 2)
    policy = Hedging(after_s=0.0, first_output_quantile=0.5)
    for number in range(3):
        fill(hedger, endpoint(policy, f"dep_{number}"))
    assert hedger.delay_s(endpoint(policy, "dep_0"), shows_progress=True) == 0.0
    assert hedger.delay_s(endpoint(policy, "dep_2"), shows_progress=True) == 0.5


def test_what_the_platform_bears_counts_in_nobodys_limits() -> None:
    callers = scope_ids("ten_1", "prj_1", "key_1", "demo")
    own = scope_ids(platform_tenant_id, "hedging", "key_1", "demo")
    assert len(own) == len(callers)
    assert not set(own) & set(callers)
