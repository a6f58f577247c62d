"""`headrace wallets` against a real admin API, and what happens when a grant expires."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.control.wallets import Wallets
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.spec.tenancy import Tenant

from .conftest import RunningPlatform

usd = 1_000_000_000


@pytest.fixture
def ask(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json and return what it wrote."""

    def run_and_parse(*arguments: str) -> Any:
        assert run(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    return run_and_parse


def spend(platform: RunningPlatform, amount_nanousd: int) -> None:
    tenant = platform.database.store.find(Tenant, "acme")
    assert tenant is not None
    settlement = Settlement(
        request_id=f"r-{platform.clock.wall_s()}",
        tenant_id=tenant.id,
        project_id="prj",
        key_id="key",
        model="small",
        usage=TokenUsage(1, 0, 1),
        outcome=Outcome.FINISHED,
        source=UsageSource.ENGINE,
        price_book_id="prb",
        charge=Charge(output_nanousd=amount_nanousd),
        settle_time=platform.clock.wall_s(),
    )
    platform.database.ledger.post([settlement])


def left_by_kind(wallet: Any) -> dict[str, int]:
    return {each["kind"]: each["left"]["nanousd"] for each in wallet["grants"]}


def test_what_is_left_of_a_grant_expires_once(
    platform: RunningPlatform, ask: Callable[..., Any], run: Callable[..., int]
) -> None:
    ask("tenants", "create", "acme", "--credit-usd", "1")
    ask("wallets", "grant", "acme", "5", "--kind", "promotional", "--expires-in", "10d")
    ask("wallets", "grant", "acme", "2", "--priority", "90", "--reason", "order 7")
    platform.clock.advance(86_400 * 3.5)
    spend(platform, 2 * usd)
    wallet = ask("wallets", "list", "acme")
    assert wallet["balance"]["nanousd"] == 6 * usd
    assert left_by_kind(wallet) == {"promotional": 3 * usd, "prepaid": 2 * usd}

    platform.clock.advance(86_400 * 7)
    wallets = Wallets(platform.database, platform.clock)
    assert [wallets.expire(), wallets.expire()] == [1, 0]
    wallet = ask("wallets", "list", "acme")
    assert wallet["balance"]["nanousd"] == 3 * usd
    assert left_by_kind(wallet) == {"promotional": 0, "prepaid": 2 * usd}
    expired = {each["kind"]: each["expired"] for each in wallet["grants"]}
    assert expired["promotional"]["nanousd"] == 3 * usd
    assert expired["prepaid"] is None
    assert platform.database.ledger.check() == []
    assert run("wallets", "list", "acme") == 0


def test_a_grant_of_nothing_is_refused(
    ask: Callable[..., Any],
    run: Callable[..., int],
    platform: RunningPlatform,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask("tenants", "create", "acme")
    assert run("wallets", "grant", "acme", "0") == 1
    assert "over 0 dollars" in capsys.readouterr().err
