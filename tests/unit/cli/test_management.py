"""Settings of management: read from the environment and one private file, or explained."""

import json
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.management import all_settings, read_management_settings
from headrace.spec.roles import Role

provider = {
    "issuer": "https://id.example",
    "client_id": "headrace",
    "client_secret": "canary-client-secret",
    "redirect_url": "https://console.example/admin/v1/auth/oidc/callback",
    "rules": [
        {"value": "ops", "operator": True},
        {"value": "dev", "tenant": "acme", "role": "developer"},
    ],
}


payments = {"provider": "stripe", "api_key": "sk_test_1"}


def written(path: Path, content: object, mode: int = 0o600) -> str:
    path.touch(mode)
    path.chmod(mode)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_nothing_set_is_nothing_allowed() -> None:
    settings = read_management_settings({})
    assert settings.single_sign_on is None
    assert settings.admin_hosts == ()
    assert settings.egress.allowed_hosts == frozenset()


def test_what_is_set_is_read(tmp_path: Path) -> None:
    settings = read_management_settings(
        {
            "HEADRACE_OIDC_FILE": written(tmp_path / "oidc.json", provider),
            "HEADRACE_EGRESS_ALLOWED_HOSTS": "Hooks.internal, 10.0.0.5",
            "HEADRACE_ADMIN_HOSTS": "console.example",
            "HEADRACE_PAYMENTS_FILE": written(tmp_path / "payments.json", payments),
            "HEADRACE_ENGINE_SAMPLES_DAYS": "9",
        }
    )
    assert settings.payment_provider is not None
    assert settings.payment_provider.name == "stripe"
    assert settings.egress.allowed_hosts == {"hooks.internal", "10.0.0.5"}
    assert settings.admin_hosts == ("console.example",)
    assert settings.single_sign_on is not None
    assert [rule.role for rule in settings.single_sign_on.rules] == [None, Role.DEVELOPER]
    assert {setting.variable for setting in all_settings} == {
        "HEADRACE_OIDC_FILE",
        "HEADRACE_EGRESS_ALLOWED_HOSTS",
        "HEADRACE_ADMIN_HOSTS",
        "HEADRACE_PAYMENTS_FILE",
        "HEADRACE_ENGINE_SAMPLES_DAYS",
    }
    assert settings.engine_samples_days == 9
    assert read_management_settings({}).engine_samples_days == 30


@pytest.mark.parametrize("days", ["3", "3661", "-5", "a week", ""])
def test_samples_are_kept_for_a_number_of_days_that_reports_can_be_made_of(days: str) -> None:
    with pytest.raises(ConfigurationError, match="ENGINE_SAMPLES_DAYS"):
        read_management_settings({"HEADRACE_ENGINE_SAMPLES_DAYS": days})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "id.example"}, "issuer is no"),
        ({"redirect_url": "ftp://x/"}, "redirect_url is no"),
        ({"client_id": 5}, "client_id"),
        ({"rules": [{"value": "x"}]}, "either `operator`"),
        ({"rules": [{"value": "x", "tenant": "acme"}]}, "either `operator`"),
        ({"rules": [{"value": "x", "operator": True, "tenant": "a", "role": "owner"}]}, "either"),
        ({"rules": [{"value": "x", "tenant": "acme", "role": "king"}]}, "rules"),
    ],
)
def test_a_provider_that_can_not_be_meant_is_explained(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = written(tmp_path / "oidc.json", {**provider, **change})
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_management_settings({"HEADRACE_OIDC_FILE": path})
    assert "canary" not in caught.value.message


def test_a_file_that_others_read_or_nobody_can_is_refused(tmp_path: Path) -> None:
    readable = written(tmp_path / "open.json", provider, 0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_management_settings({"HEADRACE_OIDC_FILE": readable})
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_management_settings({"HEADRACE_OIDC_FILE": str(tmp_path / "none.json")})
    broken = written(tmp_path / "broken.json", "{")
    with pytest.raises(ConfigurationError, match=r"broken\.json"):
        read_management_settings({"HEADRACE_OIDC_FILE": broken})
