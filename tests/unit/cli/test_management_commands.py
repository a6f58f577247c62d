"""People, roles, service accounts, the audit log and webhooks from the command line."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.spec.token_format import service_tokens

from .conftest import RunningPlatform

Run = Callable[..., int]


@pytest.fixture
def run_json(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run_and_parse(*arguments: str) -> Any:
        assert run(*arguments, "--json") == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run_and_parse


def test_people_get_accounts_and_roles(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("tenants", "create", "acme")
    assert run("users", "create", "Ada") == 0
    made = capsys.readouterr()
    assert "password" in made.out
    assert "can't be shown again" in made.err
    assert run_json("members", "add", "ada", "--tenant", "acme", "--role", "owner")["role"] == (
        "owner"
    )
    assert [m["login"] for m in run_json("members", "list", "--tenant", "acme")["items"]] == ["ada"]
    assert run("members", "list") == 0
    assert "owner" in capsys.readouterr().out
    assert run_json("members", "remove", "ada", "--tenant", "acme")["login"] == "ada"
    assert run_json("members", "list")["items"] == []
    assert run_json("users", "update", "ada", "--closed")["active"] is False
    assert run_json("users", "list")["items"][0]["login"] == "ada"
    assert run("users", "show", "ada") == 0
    assert "argon2" not in capsys.readouterr().out


def test_a_service_account_manages_with_its_token(
    platform: RunningPlatform, run: Run, run_json: Callable[..., Any]
) -> None:
    run_json("tenants", "create", "acme")
    run_json("projects", "create", "web", "--tenant", "acme")
    made = run_json("service-accounts", "create", "ci", "--tenant", "acme", "--projects", "web")
    assert service_tokens.parse(made["token"]) is not None
    where = ("--admin-url", platform.url, "--admin-token", made["token"])
    assert run_json("keys", "create", "--project", "web", *where)["project"] == "web"
    assert run("tenants", "create", "mine", *where) == 1
    assert run_json("service-accounts", "list")["items"][0]["name"] == "ci"
    assert run_json("service-accounts", "revoke", "ci")["active"] is False
    assert run("keys", "list", *where) == 1


def test_the_audit_log_is_listed_exported_and_verified(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("acme", "rival"):
        run_json("tenants", "create", name)
    assert run("audit", "list") == 0
    assert capsys.readouterr().out.count("create_tenant") == 2
    path = platform.data_dir / "audit.jsonl"
    assert run("audit", "export", "-o", str(path)) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["detail"]["name"] for line in lines] == ["acme", "rival"]
    assert run("audit", "export", "-o", str(path)) == 1
    found = run_json("audit", "verify", "--expect", lines[-1]["hash"])
    assert found["sound"] is True
    assert run("audit", "verify", "--expect", lines[0]["hash"]) == 1
    assert "not the one that was expected" in capsys.readouterr().err
    whole = [f"{line['sequence']}:{line['hash']}" for line in lines]
    run_json("tenants", "create", "third")  # what was noted holds although the log goes on
    assert run_json("audit", "verify", "--noted", whole[0], "--noted", whole[1])["sound"] is True
    for wrong in (f"1:{lines[1]['hash']}", f"9:{lines[1]['hash']}"):
        assert run("audit", "verify", "--noted", wrong) == 1
        assert "noted" in capsys.readouterr().err
    assert run("audit", "verify", "--noted", "1:x") == 1


def test_webhooks_are_made_tested_and_deleted(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("tenants", "create", "acme")
    options = ("--url", "https://hooks.example/x", "--events", "budget.threshold")
    made = run_json("webhooks", "create", *options, "--tenant", "acme", "--name", "ops")
    assert made["secret"].startswith("whsec_")
    assert run_json("webhooks", "rotate", "ops")["secret"] != made["secret"]
    assert run_json("webhooks", "update", "ops", "--off")["active"] is False
    run_json("webhooks", "test", "ops")
    assert run("webhooks", "deliveries", "ops") == 0
    assert "pending" in capsys.readouterr().out
    assert "whsec" not in json.dumps(run_json("webhooks", "list"))
    assert run_json("webhooks", "delete", "ops") == {"deleted": "ops"}
    assert run("webhooks", "create", "--url", "https://127.0.0.1/x") == 1
    assert "public Internet" in capsys.readouterr().err
