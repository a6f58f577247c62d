"""API keys have one shape, and only a digest of their secret is kept."""

import secrets
from collections.abc import Callable

import pytest

from headrace.base.ids import new_id
from headrace.sim.clock import ManualClock
from headrace.spec.api_key_format import (
    format_key,
    hash_secret,
    parse_key,
    pepper_bytes,
    secret_bytes,
    secret_matches,
)

key_id = new_id("key", ManualClock())
secret = secrets.token_bytes(secret_bytes)


def test_a_key_parses_back_into_its_parts() -> None:
    parsed = parse_key(format_key(key_id, secret))
    assert parsed is not None
    assert parsed.key_id == key_id
    assert parsed.secret == secret.hex()


@pytest.mark.parametrize(
    "damage",
    [
        lambda key: "",
        lambda key: key[:-1],
        lambda key: key + "0",
        lambda key: key + "\n",
        lambda key: key.upper(),
        lambda key: "sk" + key[2:],
        lambda key: key.replace("_", "-"),
        lambda key: key[:-1] + "é",
        lambda key: " " + key,
        lambda key: key[:3] + "u" + key[4:],
    ],
)
def test_anything_else_has_not_the_shape_of_a_key(damage: Callable[[str], str]) -> None:
    assert parse_key(damage(format_key(key_id, secret))) is None


@pytest.mark.parametrize(
    ("bad_id", "bad_secret"),
    [("ten_1", secret), (key_id, b"short")],
    ids=["no key", "short"],  # the values are other ones each time
)
def test_a_key_is_not_written_from_bad_parts(bad_id: str, bad_secret: bytes) -> None:
    with pytest.raises(ValueError, match="not an API key id"):
        format_key(bad_id, bad_secret)


def test_a_secret_matches_only_itself_under_its_pepper() -> None:
    pepper, other = bytes(pepper_bytes), bytes([1] * pepper_bytes)
    digest = hash_secret(pepper, secret.hex())
    assert secret_matches(pepper, secret.hex(), digest)
    assert not secret_matches(pepper, secrets.token_hex(secret_bytes), digest)
    assert not secret_matches(other, secret.hex(), digest)


def test_a_short_pepper_is_refused() -> None:
    with pytest.raises(ValueError, match="pepper"):
        hash_secret(b"short", secret.hex())
