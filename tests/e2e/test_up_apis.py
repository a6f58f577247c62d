"""Every API of a running platform, asked with its maker's own client."""

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
import trustme

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
question = "Name a colour."
batch_size = 3


class Tls:
    """A certificate in files, a port for it, and who trusts it."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(directory / "key.pem")
        issued.cert_chain_pems[0].write_to_path(directory / "chain.pem")
        self.trust = ssl.create_default_context()
        authority.configure_trust(self.trust)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{sock.getsockname()[1]}"
        self.arguments = (
            *("--tls-listen", self.address),
            *("--tls-certificate", str(directory / "chain.pem")),
            *("--tls-key", str(directory / "key.pem")),
        )


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[PlatformProcess]:
    directory = tmp_path_factory.mktemp("up")
    with PlatformProcess.start(directory, "--demo", *tls.arguments) as started:
        yield started


@pytest.fixture
def gpt(platform: PlatformProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=platform.api_key, base_url=platform.gateway_url + "/v1") as client:
        yield client


@pytest.fixture
def claude(platform: PlatformProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key=platform.api_key, base_url=platform.gateway_url) as client:
        yield client


def test_a_conversation_of_responses(gpt: openai.OpenAI) -> None:
    first = gpt.responses.create(model=model, input=question, max_output_tokens=16)
    assert first.output_text
    second = gpt.responses.create(
        model=model, input="Another.", previous_response_id=first.id, max_output_tokens=16
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert gpt.responses.retrieve(second.id).output_text == second.output_text


def test_messages_and_their_count(claude: anthropic.Anthropic) -> None:
    count = claude.messages.count_tokens(
        model=model, messages=[{"role": "user", "content": question}]
    )
    with claude.messages.stream(
        model=model, max_tokens=16, messages=[{"role": "user", "content": question}]
    ) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == count.input_tokens
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(
            model=model, max_tokens=16, messages=[{"role": "user", "content": "x " * 50_000}]
        )


def test_a_batch_from_a_file_to_a_file(gpt: openai.OpenAI) -> None:
    lines = [
        {
            "custom_id": f"c{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "max_tokens": 4,
                "messages": [{"role": "user", "content": question}],
            },
        }
        for number in range(batch_size)
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = gpt.files.create(file=("in.jsonl", data), purpose="batch")
    batch = gpt.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )

    wait_until(lambda: gpt.batches.retrieve(batch.id).status in ("completed", "failed"))
    ended = gpt.batches.retrieve(batch.id)
    assert ended.output_file_id is not None
    answers = gpt.files.content(ended.output_file_id).text.splitlines()
    assert {json.loads(answer)["custom_id"] for answer in answers} == {"c0", "c1", "c2"}


def test_the_tls_port_serves_the_same(platform: PlatformProcess, tls: Tls) -> None:
    with httpx.Client(verify=tls.trust) as client:
        headers = {"Authorization": f"Bearer {platform.api_key}"}
        answer = client.get(f"https://{tls.address}/v1/models", headers=headers)
    assert [card["id"] for card in answer.json()["data"]] == [model]
