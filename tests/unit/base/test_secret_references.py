"""Secrets are named, read where they are needed, and nothing else can be read by a reference."""

from pathlib import Path

import pytest

from headrace.base import secret_references
from headrace.base.errors import InvalidRequest
from headrace.base.secret_references import check_reference, read_secret

environment = {
    "OPENAI_API_KEY": " sk-1\n",
    "AWS_BEARER_TOKEN_BEDROCK": "b",
    "HEADRACE_ADMIN_TOKEN": "ours",
    "DATABASE_URL": "postgresql://user:password@host/db",
    "EMPTY_KEY": "",
}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "secrets"
    directory.mkdir()
    monkeypatch.setattr(secret_references, "secret_directories", (directory,))
    return directory


@pytest.mark.parametrize(
    ("reference", "secret"),
    [
        ("env:OPENAI_API_KEY", "sk-1"),
        ("env:AWS_BEARER_TOKEN_BEDROCK", "b"),
        ("env:ABSENT_KEY", None),
        ("env:EMPTY_KEY", None),
    ],
)
def test_a_variable_is_read_where_it_is(reference: str, secret: str | None) -> None:
    check_reference(reference, "key")
    assert read_secret(reference, environment) == secret


def test_a_file_is_read_anew_each_time(secrets: Path) -> None:
    reference = f"file:{secrets}/openai"
    check_reference(reference, "key")
    assert read_secret(reference) is None
    for secret in ("first", "renewed"):
        (secrets / "openai").write_text(f"{secret}\n")
        assert read_secret(reference) == secret
    (secrets / "openai").write_bytes(b"\xff\xfe")
    assert read_secret(reference) is None


def test_nothing_else_of_the_process_can_be_read(secrets: Path, tmp_path: Path) -> None:
    (tmp_path / "headrace.db").write_text("rows")
    (secrets / "link").symlink_to(tmp_path / "headrace.db")
    for reference in (
        "env:HEADRACE_ADMIN_TOKEN",
        "env:DATABASE_URL",
        "env:openai_api_key",
        "env:",
        f"file:{tmp_path}/headrace.db",
        f"file:{secrets}/../headrace.db",
        f"file:{secrets}/link",
        "file:openai",
        "sk-an-actual-key",
        "",
    ):
        with pytest.raises(InvalidRequest) as refused:
            check_reference(reference, "key")
        assert "sk-an-actual-key" not in refused.value.message
        assert read_secret(reference, environment) is None
