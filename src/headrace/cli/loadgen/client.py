"""One streamed request over aiohttp, and the questions to a server before a test."""

import dataclasses
import math
from array import array
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError, UpstreamFailed
from headrace.cli.loadgen.stream import StreamScanner, Usage
from headrace.cli.loadgen.workload import Workload

connect_timeout_s = 10.0
error_bytes_max = 4096
stale_connections_max = 1000  # of one pool, found closed one after the other
probe_words = (16, 272)  # the two lengths whose token counts give tokens a word
probe_output_tokens = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """What one request showed; times are seconds on the client's clock."""

    start_s: float  # when it was due: with a request rate, waiting for a slot counts
    end_s: float
    first_text_s: float | None
    last_text_s: float | None
    gaps_s: "array[float]"
    usage: Usage | None
    error: str | None  # None: complete and without an error


class ModelName(msgspec.Struct, frozen=True):
    """One entry of /v1/models."""

    id: str


class ModelList(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: list[ModelName]


class LoadClient:
    """A pool of connections to one server."""

    def __init__(
        self, url: str, api_key: str | None, request_timeout_s: float, clock: Clock
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{url!r} is not an http:// or https:// address; one is http://127.0.0.1:8000"
            )
        self._url = url.rstrip("/").removesuffix("/v1")
        self._clock = clock
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),  # the runner bounds what is in flight
            timeout=aiohttp.ClientTimeout(total=request_timeout_s, sock_connect=connect_timeout_s),
            auto_decompress=False,
        )

    async def __aenter__(self) -> Self:
        """Open; connections are made as they are needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self._session.close()

    async def first_model(self) -> str:
        """The first model that the server offers."""
        try:
            async with self._session.get(f"{self._url}/v1/models") as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise UpstreamFailed(
                        f"{self._url}/v1/models answered {_refusal(answer.status, content)}"
                    )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamFailed(
                f"{self._url} does not answer ({_reason(error)}); is the server running there?"
            ) from error
        try:
            models = msgspec.json.decode(content, type=ModelList).data
        except msgspec.DecodeError as error:
            raise UpstreamFailed(
                f"{self._url}/v1/models is not a list of models; name one with --model"
            ) from error
        if not models:
            raise UpstreamFailed(f"{self._url} offers no model; name one with --model")
        return models[0].id

    async def ask(self, workload: Workload, body: bytes, due_s: float | None = None) -> Sample:
        """Send one request and follow its answer to the end; failures are part of the sample."""
        clock = self._clock
        start_s = clock.monotonic_s() if due_s is None else due_s
        scanner = StreamScanner()
        failure: str | None = None
        try:
            async with await self._post(self._url + workload.path, body) as answer:
                if answer.status != 200:
                    content = await answer.content.read(error_bytes_max)
                    failure = _refusal(answer.status, content)
                else:
                    async for data in answer.content.iter_any():
                        scanner.push(data, clock.monotonic_s())
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = _reason(error)
        end_s = clock.monotonic_s()
        end = scanner.finish()
        if failure is None:
            failure = end.error or (None if end.complete else "the stream ended early")
        return Sample(
            start_s=start_s,
            end_s=end_s,
            first_text_s=scanner.first_text_s,
            last_text_s=scanner.last_text_s,
            gaps_s=scanner.gaps_s,
            usage=end.usage,
            error=failure,
        )

    async def _post(self, url: str, body: bytes) -> aiohttp.ClientResponse:
        """Send a request, again as long as the server had closed the kept connection meanwhile.

        llama-server does so after each stream without announcing it."""
        for _ in range(stale_connections_max):
            try:
                return await self._session.post(url, data=body)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                continue
        return await self._session.post(url, data=body)


async def tokens_per_word(client: LoadClient, workload: Workload) -> tuple[float, float]:
    """Tokens a word and tokens of an empty prompt (its template), as the server counts them."""
    counts = []
    for word_count in probe_words:
        shape = dataclasses.replace(
            workload,
            prompt_words=word_count,
            shared_prefix_words=0,
            output_tokens=probe_output_tokens,
        )
        sample = await client.ask(shape, shape.body("probe", 0))
        if sample.error is not None or sample.usage is None:
            raise UpstreamFailed(
                f"the server does not say how many tokens a prompt has "
                f"({sample.error or 'no usage in its answer'}); give lengths in words"
            )
        counts.append(sample.usage.prompt_tokens)
    per_word = (counts[1] - counts[0]) / (probe_words[1] - probe_words[0])
    if per_word <= 0:
        raise UpstreamFailed("the server's prompt token counts make no sense; use words")
    return per_word, counts[0] - per_word * probe_words[0]


def words_for_tokens(token_count: int, per_word: float, overhead_tokens: float) -> int:
    """How many words make a prompt of about `token_count` tokens, its template included."""
    return max(1, math.floor((token_count - overhead_tokens) / per_word + 0.5))


def _refusal(status: int, content: bytes) -> str:
    """An error status in one line."""
    try:
        decoded = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return f"HTTP {status}"
    error = decoded.get("error") if isinstance(decoded, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return f"HTTP {status}: {message}" if isinstance(message, str) else f"HTTP {status}"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"connection failed: {error.os_error.strerror or error.os_error}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
