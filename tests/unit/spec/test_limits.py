"""Limits as the store keeps them."""

import msgspec
import pytest

from headrace.spec.limits import CalendarPeriod, Limits
from headrace.spec.tenancy import Tenant


def test_a_tenant_that_was_stored_before_there_were_limits_has_none() -> None:
    body = b'{"type":"tenant","id":"ten_1","name":"acme","create_time":0.0}'
    assert msgspec.json.decode(body, type=Tenant).limits is None


@pytest.mark.parametrize("period", [CalendarPeriod.MONTH, 3_600])
def test_limits_survive_the_store(period: CalendarPeriod | int) -> None:
    limits = Limits(tokens_per_period=5, period=period, budget_nanousd=7)
    tenant = Tenant(id="ten_1", name="acme", create_time=0.0, limits=limits)
    assert msgspec.json.decode(msgspec.json.encode(tenant), type=Tenant) == tenant


@pytest.mark.parametrize(
    "wrong", [{"requests_per_minute": -1}, {"period": 59}, {"budget_nanousd": 2**61}]
)
def test_impossible_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Limits)
