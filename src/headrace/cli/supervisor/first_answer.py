"""When the platform is ready: a real answer came through the gateway, as a customer would get it.

Without a key of the demo's there is nobody to ask as; then it is ready when the gateway takes
requests and the control plane answers.
"""

import msgspec

from headrace.base.errors import HeadraceError
from headrace.http.client import HttpClient, WholeAnswer

answer_bytes_max = 1 << 20
answer_timeout_s = 60.0  # of one try; the first token of a large model on a slow machine
probe_timeout_s = 2.0


class ListedModel(msgspec.Struct):
    """The part of a model's entry that tells whether a replica serves it."""

    max_model_len: int | None = None


class RefusalDetail(msgspec.Struct):
    """What people read of a refusal."""

    message: str


class Refusal(msgspec.Struct):
    """An error answer."""

    error: RefusalDetail


async def gateway_answers(client: HttpClient, gateway_url: str) -> bool:
    """Whether the gateway would take requests."""
    answer = await _ask(client, f"{gateway_url}/readyz", {}, timeout_s=probe_timeout_s)
    return answer is not None and answer.status == 200


async def control_answers(client: HttpClient, admin_url: str, token: str) -> bool:
    """Whether the control plane serves its API."""
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{admin_url}/admin/v1/replicas"
    answer = await _ask(client, url, headers, timeout_s=probe_timeout_s)
    return answer is not None and answer.status == 200


async def what_is_missing(
    client: HttpClient, gateway_url: str, api_key: str, model_name: str
) -> str | None:
    """Ask for a chat completion of one token: why none came, or None if it did.

    The gateway is first asked whether it knows a replica, so that the platform's own question is
    not one of the requests that failed."""
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    url = f"{gateway_url}/v1/models/{model_name}"
    answer = await _ask(client, url, headers, timeout_s=probe_timeout_s)
    if answer is None or answer.status != 200:
        return _reason(answer)
    if msgspec.json.decode(answer.body, type=ListedModel).max_model_len is None:
        return "the gateway does not know the replica yet"
    body = msgspec.json.encode(
        {
            "model": model_name,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 1,
        }
    )
    url = f"{gateway_url}/v1/chat/completions"
    answer = await _ask(client, url, headers, timeout_s=answer_timeout_s, body=body)
    return None if answer is not None and answer.status == 200 else _reason(answer)


def _reason(answer: WholeAnswer | None) -> str:
    """A refusal in the gateway's words."""
    if answer is None:
        return "no answer from the gateway"
    try:
        words = msgspec.json.decode(answer.body, type=Refusal).error.message
    except msgspec.DecodeError:
        words = "no words"
    return f"{answer.status}: {words}"


async def _ask(
    client: HttpClient,
    url: str,
    headers: dict[str, str],
    *,
    timeout_s: float,
    body: bytes | None = None,
) -> WholeAnswer | None:
    """The answer to a POST of `body`, or to a GET without one; None if there is none."""
    try:
        return await client.fetch(
            "GET" if body is None else "POST",
            url,
            headers=headers,
            body=body,
            timeout_s=timeout_s,
            limit_bytes=answer_bytes_max,
        )
    except HeadraceError:
        return None
