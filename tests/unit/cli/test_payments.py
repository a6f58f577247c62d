"""`headrace payments` against a real admin API: from an agreement to a refund."""

import json
from collections.abc import Callable

import pytest

from headrace.control.payments.payments import Payments
from headrace.control.payments.provider import PaymentProvider

from .conftest import RunningPlatform

Run = Callable[..., int]


def test_credit_is_bought_and_given_back(
    platform: RunningPlatform,
    payment_provider: PaymentProvider,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    payments = Payments(platform.database, platform.clock, payment_provider)
    assert run("tenants", "create", "acme") == 0
    agreed = ("--customer", "cus_1", "--recharge-below-usd", "5", "--recharge-usd", "20")
    assert run("payments", "agree", "acme", *agreed) == 0
    assert "$20.00 when under $5.00" in capsys.readouterr().out
    payments.look()
    assert run("payments", "list", "--tenant", "acme", "--json") == 0
    [payment] = json.loads(capsys.readouterr().out)["items"]
    assert (payment["state"], payment["credit"]["usd"]) == ("succeeded", "20.00")
    assert run("payments", "refund", payment["id"], "7.50") == 0
    payments.look()
    capsys.readouterr()
    assert run("tenants", "show", "acme", "--json") == 0
    assert json.loads(capsys.readouterr().out)["balance"]["usd"] == "12.50"
    assert run("payments", "list") == 0
    assert "7.50 USD" in capsys.readouterr().out


def test_what_cannot_be_paid_says_why(
    platform: RunningPlatform, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert platform.url
    assert run("payments", "pay", "INV-000001") == 1
    assert "there is no invoice INV-000001" in capsys.readouterr().err
    assert run("tenants", "create", "acme") == 0
    assert run("payments", "agree", "acme", "--customer", "cus_1", "--recharge-usd", "1") == 1
    assert "give both" in capsys.readouterr().err
    wrong = ("--recharge-below-usd", "1", "--recharge-usd", "0.001")
    assert run("payments", "agree", "acme", "--customer", "cus_1", *wrong) == 1
    assert "whole cents" in capsys.readouterr().err
