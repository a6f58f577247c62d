"""The platform's commands against a real admin API: what they do, what they write."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.ids import new_id
from headrace.cli import admin_client
from headrace.spec.api_key_format import parse_key
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.limits import Limits
from headrace.spec.settlements import Charge, Outcome, Settlement, TokenUsage, UsageSource
from headrace.spec.tenancy import ApiKey, Project, Tenant

from .conftest import RunningPlatform

Run = Callable[..., int]


@pytest.fixture
def run_json(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run a command with --json and return what it wrote."""

    def run_and_parse(*arguments: str) -> dict[str, Any]:
        assert run(*arguments, "--json") == 0
        written = capsys.readouterr()
        assert written.err == ""
        parsed = json.loads(written.out)
        assert isinstance(parsed, dict)
        return parsed

    return run_and_parse


def test_from_nothing_to_a_key(
    platform: RunningPlatform, run_json: Callable[..., dict[str, Any]]
) -> None:
    run_json("tenants", "create", "acme", "--credit-usd", "5")
    run_json("projects", "create", "web", "--tenant", "acme")
    for model in ("small", "big"):
        run_json("models", "create", model, "--source", f"{model}.gguf")
    created = run_json(
        "keys", "create", "--project", "web", "--models", "small,big", "--expires-in", "30d"
    )
    parsed = parse_key(str(created["key"]))
    assert parsed is not None
    assert parsed.key_id == created["id"]
    stored = platform.database.store.get(ApiKey, parsed.key_id)
    assert stored.models == ("small", "big")
    assert stored.expire_time == platform.clock.wall_s() + 30 * 86_400
    assert run_json("keys", "show", str(created["key"]))["id"] == created["id"]
    assert run_json("keys", "revoke", str(created["id"]))["state"] == "revoked"


def test_limits_are_set_shown_and_replaced(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("tenants", "create", "acme", "--budget-usd", "9", "--budget-period", "month")
    run_json("projects", "create", "web", "--tenant", "acme", "--concurrency", "3")
    options = ("--rpm", "60", "--tpm", "9000", "--budget-usd", "0.01", "--tokens-per-day", "500")
    key = run_json("keys", "create", "--project", "web", *options)
    assert platform.database.store.get(ApiKey, key["id"]).limits == Limits(
        requests_per_minute=60,
        tokens_per_minute=9_000,
        tokens_per_period=500,
        budget_nanousd=10_000_000,
    )
    assert run("keys", "show", key["id"]) == 0
    shown = capsys.readouterr().out
    for line in ("60 a minute", "9000 a minute", "500 a day", "$0.01 a day"):
        assert line in shown
    assert run_json("tenants", "show", "acme")["limits"]["budget"]["nanousd"] == 9_000_000_000
    replaced = run_json("projects", "update", "acme/web", "--rpm", "5")["limits"]
    assert (replaced["requests_per_minute"], replaced["concurrent_requests"]) == (5, None)
    batch = run_json("tenants", "update", "acme", "--priority-highest", "batch")
    assert (batch["priority_highest"], batch["limits"]["budget"]["usd"]) == ("batch", "9.00")
    assert run_json("tenants", "update", "acme", "--no-limits")["limits"] is None
    assert run("tenants", "update", "acme") == 1
    assert "say what to change" in capsys.readouterr().err
    run_json("models", "create", "small", "--source", "s.gguf")
    limited = run_json("models", "update", "small", "--concurrency", "4", "--alert-only")["limits"]
    assert (limited["concurrent_requests"], limited["alert_only"]) == (4, True)


def test_a_key_is_changed_and_rotated(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("tenants", "create", "acme")
    run_json("projects", "create", "web", "--tenant", "acme")
    run_json("models", "create", "small", "--source", "s.gguf")
    scope = ("--endpoints", "chat,embeddings", "--allow-ip", "203.0.113.0/24")
    options = ("--model-limit", "small:rpm=5,budget-usd=0.5", "--tokens-per-month", "900")
    made = run_json("keys", "create", "--project", "web", "--name", "ci", *scope, *options)
    stored = platform.database.store.get(ApiKey, made["id"])
    assert (stored.endpoints, stored.allowed_networks) == (
        ("chat", "embeddings"),
        ("203.0.113.0/24",),
    )
    assert stored.model_limits == {
        "small": Limits(requests_per_minute=5, budget_nanousd=500_000_000)
    }
    changed = run_json(
        "keys", "update", "ci", "--models", "small", "--unbound", "allow-ip", "--budget-usd", "1",
        "--budget-period", "30d",
    )  # fmt: skip
    assert (changed["models"], changed["allowed_networks"]) == (["small"], None)
    assert changed["limits"]["budget_period"] == 30 * 86_400
    rotated = run_json("keys", "rotate", "ci", "--overlap", "2h")
    assert parse_key(rotated["key"]) is not None
    assert (rotated["name"], rotated["models"]) == ("ci", ["small"])
    old = run_json("keys", "show", made["key"])
    assert old["successor_id"] == rotated["id"]
    assert platform.database.store.get(ApiKey, made["id"]).expire_time == (
        platform.clock.wall_s() + 7200
    )
    assert run("keys", "show", "ci") == 0
    shown = capsys.readouterr().out
    assert "chat, embeddings" in shown
    assert "small requests" in shown


@pytest.mark.parametrize("text", ["small", "small:", ":rpm=1", "small:rpm", "small:x=1", "s:rpm=x"])
def test_a_model_limit_that_can_not_be_read_is_explained(
    platform: RunningPlatform, run: Run, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert run("keys", "create", "--project", "web", "--model-limit", text) == 1
    assert "MODEL:LIMIT=N" in capsys.readouterr().err


def test_tables_are_for_people(
    platform: RunningPlatform, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run("tenants", "create", "acme", "--credit-usd", "5")
    run("projects", "create", "web", "--tenant", "acme")
    capsys.readouterr()
    assert run("keys", "create", "--project", "acme/web") == 0
    created = capsys.readouterr()
    assert "hr_" in created.out
    assert created.err == "Keep the key now: it can't be shown again.\n"
    run("keys", "list")
    listed = capsys.readouterr().out
    assert "acme/web" in listed
    assert "hr_" not in listed
    run("tenants", "list")
    assert "$5.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("tenants", "list"), "headrace tenants create"),
        (("projects", "list"), "headrace projects create"),
        (("keys", "list"), "headrace keys create"),
        (("models", "list"), "headrace models create"),
        (("deployments", "list"), "headrace deployments create"),
        (("replicas", "list"), "headrace deployments list"),
        (("usage",), "no usage"),
        (("prices", "list"), "headrace prices apply"),
    ],
)
def test_an_empty_list_says_what_to_do(
    platform: RunningPlatform,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    hint: str,
) -> None:
    assert run(*command) == 0
    assert hint in capsys.readouterr().out


def test_deployments_scale_and_show_why_they_are_not_ready(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("models", "create", "small", "--source", "small.gguf")
    arguments = ("--engine-argument=--kv-tokens", "--engine-argument=4096")
    created = run_json("deployments", "create", "small", "--threads", "2", *arguments)
    assert created["engine_arguments"] == ["--kv-tokens", "4096"]
    deployment = platform.database.store.get(Deployment, str(created["id"]))
    platform.database.store.create(
        Replica(
            id=new_id("rep", platform.clock),
            name="small-a",
            parent_id=deployment.id,
            create_time=platform.clock.wall_s(),
            state=ReplicaState.LOADING,
            progress=0.4,
            detail="mapping weights",
            engine_key="canary-key",
        )
    )
    assert run_json("deployments", "scale", "small", "3")["replicas"] == 3
    assert run_json("deployments", "update", "small", "--replicas", "0")["replicas"] == 0
    assert run_json("deployments", "update", "small", "--replicas", "3")["replicas"] == 3
    run("deployments", "show", "small")
    shown = capsys.readouterr().out
    assert "0/3" in shown
    assert "small-a is loading: mapping weights" in shown
    run("replicas", "list", "--deployment", "small")
    replicas = capsys.readouterr().out
    assert "loading 40%" in replicas
    assert "canary-key" not in replicas
    assert run_json("deployments", "delete", "small") == {"deleted": "small"}


@pytest.mark.usefixtures("platform")
def test_deployments_say_between_what_they_are_scaled(
    run: Run, run_json: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run_json("models", "create", "small", "--source", "m.gguf")
    run_json("deployments", "create", "small")
    run_json("deployments", "update", "small", "--min", "1", "--max", "3")
    run("deployments", "show", "small")
    assert "1 to 3 replicas by traffic" in capsys.readouterr().out
    run_json("deployments", "update", "small", "--fixed")
    run("deployments", "show", "small")
    assert "by traffic" not in capsys.readouterr().out


def test_deployments_say_when_a_second_replica_is_asked(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("models", "create", "small", "--source", "small.gguf")
    created = run_json("deployments", "create", "small", "--hedge-after", "0.5")
    assert created["hedging"] == {"after_s": 0.5, "first_output_quantile": None}
    run_json("deployments", "update", "small", "--hedge-after", "1", "--hedge-quantile", "0.95")
    run("deployments", "show", "small")
    assert "after 1 s, and not before quantile 0.95" in capsys.readouterr().out
    assert run_json("deployments", "update", "small", "--no-hedge")["hedging"] is None


def test_usage_sums_by_group(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    tenant = Tenant(id=new_id("ten", platform.clock), name="acme", create_time=0)
    platform.database.store.create(tenant)
    for number, model in enumerate(("small", "small", "big")):
        platform.database.ledger.post(
            [
                Settlement(
                    request_id=f"req-{number}",
                    tenant_id=tenant.id,
                    project_id="prj_1",
                    key_id="key_1",
                    model=model,
                    usage=TokenUsage(prompt_tokens=1000, cached_tokens=10, completion_tokens=7),
                    outcome=Outcome.ABORTED,
                    source=UsageSource.ENGINE,
                    price_book_id="prb_1",
                    charge=Charge(input_nanousd=1_500_000_000),
                    settle_time=1_790_000_000.0,
                )
            ]
        )
    found = run_json("usage", "--by", "tenant,model,day", "--since", "2026-09-21")
    assert [(item["model"], item["requests"]) for item in found["items"]] == [
        ("big", 1),
        ("small", 2),
    ]
    run("usage", "--by", "model")
    table = capsys.readouterr().out
    assert "2,000" in table
    assert "$3.00" in table
    assert "total" in table


def test_the_servers_refusal_is_one_line(
    platform: RunningPlatform, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("tenants", "show", "nobody") == 1
    assert capsys.readouterr().err.startswith("headrace: there is no tenant named 'nobody'; ")


def test_slashes_in_names_reach_the_server(
    platform: RunningPlatform, run_json: Callable[..., dict[str, Any]]
) -> None:
    run_json("models", "create", "org/small", "--source", "s.gguf")
    run_json("deployments", "create", "org/small", "--name", "main")
    assert run_json("models", "show", "org/small")["name"] == "org/small"
    assert run_json("deployments", "show", "org/small/main")["name"] == "main"


def test_lists_cross_page_borders(
    platform: RunningPlatform,
    run_json: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_client, "page_items", 3)
    for number in range(7):
        run_json("tenants", "create", f"tenant-{number}")
    assert len(run_json("tenants", "list")["items"]) == 7


def test_a_price_book_is_applied_from_a_file(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = platform.data_dir / "prices.json"
    prices = {"input_usd_per_million": "0.075", "output_usd_per_million": "0.3"}
    path.write_text(json.dumps({"name": "december", "prices": {"small": prices}}))
    book = run_json("prices", "apply", "-f", str(path))
    assert book["prices"]["small"]["input_nanousd_per_million"] == 75_000_000
    assert book.pop("unknown_models") == ["small"]
    assert run_json("prices", "list")["items"] == [book]
    run("prices", "list")
    assert "$0.075" in capsys.readouterr().out


def test_a_price_book_may_be_yaml(
    platform: RunningPlatform, run_json: Callable[..., dict[str, Any]]
) -> None:
    path = platform.data_dir / "prices.yaml"
    path.write_text(
        "effective_time: 2026-12-01T00:00:00Z\n"
        "prices:\n"
        '  small: {input_usd_per_million: "0.10", output_usd_per_million: 2}\n'
    )
    book = run_json("prices", "apply", "-f", str(path))
    assert book["effective_time"] == "2026-12-01T00:00:00Z"
    assert book["prices"]["small"]["output_nanousd_per_million"] == 2_000_000_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read"),
        ("{", "is not YAML or JSON"),
        ("[]", "has no fields"),
        ('{"prices": {}}', "prices: "),
        ('{"prices": {"small": {"input_usd_per_million": "free"}}}', "prices.small"),
    ],
)
def test_a_wrong_price_book_is_explained(
    platform: RunningPlatform,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    message: str,
) -> None:
    path = platform.data_dir / "prices.json"
    if content is not None:
        path.write_text(content)
    assert run("prices", "apply", "-f", str(path)) == 1
    written = capsys.readouterr().err
    assert message in written
    assert written.count("\n") == 1


def test_fallbacks_objectives_and_caching_are_set_and_taken_away(
    platform: RunningPlatform,
    run: Run,
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_json("models", "create", "small", "--source", "small.gguf")
    run_json("models", "create", "big", "--source", "big.gguf", "--fallback", "small")
    shown = run_json("models", "update", "big", "--ttft-objective-s", "0.5")
    assert (shown["fallbacks"], shown["objectives"]["ttft_s"]) == (["small"], 0.5)
    assert run("models", "show", "big") == 0
    written = capsys.readouterr().out
    assert "falls back on" in written
    assert "within 0.5 s" in written
    bare = run_json("models", "update", "big", "--no-fallbacks", "--no-objectives")
    assert (bare["fallbacks"], bare["objectives"]) == ([], None)
    run_json("tenants", "create", "acme")
    run_json("projects", "create", "web", "--tenant", "acme")
    assert run_json("projects", "update", "web", "--cache-answers")["caches_answers"] is True
    assert run("projects", "show", "web") == 0
    assert platform.database.store.list(Project)[0].caches_answers
    assert "answered once" in capsys.readouterr().out


@pytest.mark.usefixtures("platform")
def test_an_operator_says_whether_an_api_bills_what_callers_left(
    run_json: Callable[..., dict[str, Any]],
) -> None:
    run_json("models", "create", "away", "--source", "api:large")
    options = ("--engine", "managed", "--address", "https://api.example.com/v1")
    made = run_json("deployments", "create", "away", *options)
    assert made["upstream"]["bills_abandoned"] is None
    told = run_json("deployments", "update", "away", "--bills-abandoned")
    assert told["upstream"]["bills_abandoned"] is True
    assert told["upstream"]["address"] == "https://api.example.com/v1"
    back = run_json("deployments", "update", "away", "--ends-abandoned")
    assert back["upstream"]["bills_abandoned"] is False
