"""The readiness questions against a gateway and a control plane that say what a test wants."""

from collections.abc import AsyncIterator

import pytest

from headrace.cli.supervisor import first_answer
from headrace.http.asgi import Receive, Scope, Send, header, send_json
from headrace.http.client import HttpClient
from headrace.sim.gateway_site import serving


class Site:
    """Answers by path, and what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, str | None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked.append((path, header(scope, b"authorization")))
        status, body = self.answers.get(path, (404, b"{}"))
        await send_json(send, status, body)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    async with serving(site) as address:
        yield address


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient()
    yield made
    await made.close()


async def test_a_port_without_a_server_is_not_ready(client: HttpClient) -> None:
    nowhere = "http://127.0.0.1:1"

    assert not await first_answer.gateway_answers(client, nowhere)
    assert not await first_answer.control_answers(client, nowhere, "token")
    missing = await first_answer.what_is_missing(client, nowhere, "key", "a")
    assert missing == "no answer from the gateway"


async def test_the_gateway_is_up_once_it_says_so(site: Site, client: HttpClient, url: str) -> None:
    site.answers["/readyz"] = (503, b"{}")
    assert not await first_answer.gateway_answers(client, url)
    site.answers["/readyz"] = (200, b"{}")
    assert await first_answer.gateway_answers(client, url)


async def test_the_control_plane_is_up_once_it_takes_the_token(
    site: Site, client: HttpClient, url: str
) -> None:
    site.answers["/admin/v1/replicas"] = (200, b"{}")

    assert await first_answer.control_answers(client, url, "token")
    assert site.asked == [("/admin/v1/replicas", "Bearer token")]


async def test_nothing_is_asked_of_a_model_that_no_replica_serves(
    site: Site, client: HttpClient, url: str
) -> None:
    site.answers["/v1/models/a"] = (200, b'{"id":"a","max_model_len":null}')
    missing = await first_answer.what_is_missing(client, url, "key", "a")

    assert missing == "the gateway does not know the replica yet"
    assert [path for path, _ in site.asked] == ["/v1/models/a"]


async def test_an_answer_is_all_that_was_missing(site: Site, client: HttpClient, url: str) -> None:
    site.answers["/v1/models/a"] = (200, b'{"id":"a","max_model_len":8192}')
    site.answers["/v1/chat/completions"] = (200, b"{}")

    assert await first_answer.what_is_missing(client, url, "key", "a") is None
    assert site.asked[-1] == ("/v1/chat/completions", "Bearer key")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"no replica is ready"}}', "503: no replica is ready"),
        (b"<html>", "503: no words"),
    ],
)
async def test_a_refusal_is_told_in_the_gateways_words(
    site: Site, client: HttpClient, url: str, body: bytes, words: str
) -> None:
    site.answers["/v1/models/a"] = (200, b'{"id":"a","max_model_len":8192}')
    site.answers["/v1/chat/completions"] = (503, body)

    assert await first_answer.what_is_missing(client, url, "key", "a") == words
