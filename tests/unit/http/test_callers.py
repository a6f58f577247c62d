"""Who counts as a program of this machine."""

import pytest

from headrace.http.asgi import Scope
from headrace.http.callers import bearer_of, is_local


def asked(host: str | None, peer: str = "127.0.0.1", **more: str) -> Scope:
    headers = [] if host is None else [(b"host", host.encode())]
    headers += [(name.replace("_", "-").encode(), text.encode()) for name, text in more.items()]
    return {"type": "http", "client": (peer, 50_000), "headers": headers}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:80"])
def test_a_program_of_this_machine_asks_by_its_name(host: str) -> None:
    assert is_local(asked(host))


@pytest.mark.parametrize(
    "host", [None, "", "127.0.0.1.example:8080", "127.example", "models.example", "[::1].example"]
)
def test_a_page_that_came_by_another_name_is_no_program_of_this_machine(host: str | None) -> None:
    assert not is_local(asked(host))


def test_nor_is_another_machine_or_a_proxy() -> None:
    assert not is_local(asked("127.0.0.1", peer="10.0.0.1"))
    assert not is_local(asked("127.0.0.1", x_forwarded_for="10.0.0.1"))
    assert not is_local(asked("127.0.0.1", forwarded="for=10.0.0.1"))
    assert not is_local(asked("127.0.0.1", x_forwarded_proto="https"))
    assert not is_local(asked("127.0.0.1", x_real_ip="10.0.0.1"))
    assert not is_local(asked("127.0.0.1", via="1.1 proxy"))


def test_a_token_is_what_comes_after_bearer() -> None:
    assert bearer_of(asked(None, authorization="Bearer abc")) == "abc"
    assert bearer_of(asked(None)) == ""
