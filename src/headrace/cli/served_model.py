"""One model's API on a socket until the command ends: what `serve`, and `run --port`, do."""

import asyncio
import contextlib
import os
import socket

from headrace.base.errors import ConfigurationError
from headrace.cli import engine_news
from headrace.cli.operator_options import OperatorListener
from headrace.cli.output import note
from headrace.engine_server.app import EngineServerApp
from headrace.engine_server.messages import Ready
from headrace.engine_server.service import ModelService
from headrace.http import server
from headrace.observability.tracing import Tracer

key_variable = "HEADRACE_API_KEY"
exact_bits = 16  # of activations that lose nothing that shows


class ServedModel:
    """A service, where its API is listened to, and where its operator is."""

    def __init__(
        self,
        service: ModelService,
        sock: socket.socket,
        api_key: str | None,
        tracer: Tracer | None = None,
        operator: OperatorListener | None = None,
    ) -> None:
        self._service = service
        self._sock = sock
        self._api_key = api_key
        self._operator = operator
        self._app = EngineServerApp(service, api_key, tracer=tracer)
        self._stop = asyncio.Event()

    async def serve(self, drain_timeout_s: float) -> None:
        """Serve until a signal, or until the engine cannot run, which is raised as SetupError."""
        keeper = asyncio.create_task(self._keep_running())
        keeper.add_done_callback(lambda _: self._stop.set())
        operating = asyncio.create_task(self._listen_to_operator())
        try:
            await server.serve(
                self._app,
                self._sock,
                drain_timeout_s=drain_timeout_s,
                stop=self._stop,
                on_drain=self._app.drain,
            )
        finally:
            self._stop.set()
            await operating
            keeper.cancel()
            await self._service.close()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper

    async def _listen_to_operator(self) -> None:
        """Serve the operator's routes until the API ends."""
        operator = self._operator
        if operator is None:
            return
        await server.serve(
            self._app.admin(operator.key),
            operator.sock,
            drain_timeout_s=0,
            stop=self._stop,
            handles_signals=False,
        )

    async def _keep_running(self) -> None:
        """Start the service and tell what happens to it; returns only by raising SetupError."""
        await self._service.start()
        await engine_news.follow(
            self._service.engine, self._announce, lambda words: note(f"headrace: {words}")
        )

    def _announce(self) -> None:
        url = _url_of(self._sock)
        ready = self._service.engine.ready
        assert ready is not None
        for remark in ready.remarks:
            note(f"headrace: {remark}")
        name = self._service.config.served_name
        if ready.dimensions is not None:
            note(
                f"{name} is ready at {url}/v1 "
                f"(texts of {ready.context_length} tokens, vectors of {ready.dimensions} numbers)"
            )
            return
        key_header = '-H "Authorization: Bearer $HEADRACE_API_KEY" ' if self._api_key else ""
        path, body = "chat/completions", '"messages":[{"role":"user","content":"Hello!"}]'
        if self._service.tokenizer.chat_template is None:
            note("headrace: the model has no chat template: it completes texts, but no chats")
            path, body = "completions", '"prompt":"Once upon a time"'
        note(
            f"{name} is ready at {url}/v1 "
            f"(context {ready.context_length} tokens, kernels {_kernels_of(ready)})\n\n"
            f"  curl {url}/v1/{path} -H 'Content-Type: application/json' {key_header}"
            f'-d \'{{"model":"{name}",{body}}}\'\n'
        )


def _kernels_of(ready: Ready) -> str:
    """The kernels, and how many bits activations have if that loses something."""
    if ready.activation_bits == exact_bits:
        return ready.kernel_name
    return f"{ready.kernel_name} with {ready.activation_bits}-bit activations"


def read_api_key(variable: str = key_variable) -> str | None:
    """The key that clients must send, from the environment; None: there is none."""
    key = os.environ.get(variable)
    if key is None:
        if variable != key_variable:
            raise ConfigurationError(f"--api-key-env names {variable}, which is not set.")
        return None
    if not key.strip() or not key.isascii():
        raise ConfigurationError(f"{variable} must be a key of ASCII characters, or not be set.")
    return key.strip()


def note_address(sock: socket.socket) -> None:
    """Say where the API is, for clients of both kinds."""
    note(f"The API is at {_url_of(sock)}/v1; for Ollama's clients: OLLAMA_HOST={_url_of(sock)}")


def _url_of(sock: socket.socket) -> str:
    host, port = server.address_of(sock)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
