"""`headrace run MODEL`: chat in the terminal, with the engine and pipeline of `serve`, no HTTP."""

import asyncio
import io
import os
import re
import signal
import stat
import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError, ContextLengthExceeded, HeadraceError
from headrace.base.ids import new_id
from headrace.cli.adapter_options import Loras, with_adapters
from headrace.cli.background import BackgroundLoop, Runner
from headrace.cli.engine_settings import (
    ActivationBits,
    ContextLength,
    KvCache,
    KvCacheDtype,
    KvTokens,
    LoadCheck,
    LoadChecks,
    ModelArgument,
    Quantize,
    Threads,
    activation_width_default,
    kv_tokens_default,
    service_config,
)
from headrace.cli.load_checks import with_load_checks
from headrace.cli.memory_check import check_memory
from headrace.cli.model_files import resolve_model
from headrace.cli.packed_weights import with_packed_weights
from headrace.cli.served_model import ServedModel, note_address, read_api_key
from headrace.cli.settings import CacheDir
from headrace.engine_server.service import ModelService
from headrace.http import server
from headrace.protocol.requests import ChatMessage, ChatRequest
from headrace.weights.lora.adapter import rank_max_default

temperature_default = 0.7
input_bytes_max = 8 * 1024 * 1024  # of standard input when it is piped
prompt_mark = ">>> "
served_sequences = 4  # at once, where the API is served too
drain_timeout_s = 5.0
leave_words = ("/bye", "/exit", "/quit")
clear_word = "/clear"
command_pattern = re.compile(r"/[a-z]+")  # a question may begin with a slash, as a path does


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How every answer of a conversation is made."""

    temperature: float
    max_tokens: int | None
    seed: int | None


@dataclass(slots=True)
class Conversation:
    """What was said so far; a system prompt stays through `clear`."""

    system: str | None
    messages: list[ChatMessage] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew."""
        self.messages = []

    def request(self, model: str, settings: AnswerSettings) -> ChatRequest:
        """The request for the next answer."""
        first = [] if self.system is None else [ChatMessage("system", self.system)]
        return ChatRequest(
            model=model,
            messages=first + self.messages,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", help="Chat with a model in this terminal.")(run)


def run(
    *,
    model: ModelArgument,
    cache_dir: CacheDir,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", help="Answer this and leave.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the whole chat.")] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=100, help="0 always takes the likeliest token.")
    ] = temperature_default,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of an answer.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    kv_tokens: KvTokens = kv_tokens_default,
    kv_cache_dtype: KvCache = KvCacheDtype.F16,
    activation_bits: ActivationBits = activation_width_default,
    quantize: Quantize = None,
    threads: Threads = None,
    context_length: ContextLength = None,
    lora: Loras = None,
    load_checks: LoadChecks = LoadCheck.WARN,
    port: Annotated[
        int | None,
        typer.Option(
            help="Also serve the model's API, Ollama's included, on this port of this machine "
            "while the chat runs, and without a terminal until Ctrl-C; 0 takes a free port."
        ),
    ] = None,
) -> None:
    """Chat with a model in this terminal."""
    sock = None if port is None else server.bind("127.0.0.1", port)
    only_serves = sock is not None and prompt is None and not sys.stdin.isatty()
    question = None if only_serves else _question(prompt)
    for stream in (sys.stdin, sys.stdout):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(errors="replace")  # a terminal's odd bytes must not end the chat
    resolved = resolve_model(model, cache_dir, quantize)
    config = service_config(
        resolved.path,
        resolved.name,
        kv_tokens=kv_tokens,
        threads=threads,
        context_length=context_length,
        max_num_seqs=1 if sock is None else served_sequences,
        kv_cache_dtype=kv_cache_dtype,
        activation_bits=activation_bits,
        swap_tokens=0,
    )
    config = with_adapters(config, lora, len(lora or []), rank_max_default, cache_dir)
    check_memory(config.engine, quiet=question is not None)  # an answer comes alone
    config = with_load_checks(config, load_checks, resolved, cache_dir)
    config = with_packed_weights(config, resolved, cache_dir)
    service = ModelService(config, SystemClock())
    api_key = read_api_key()
    if sock is not None and only_serves:
        with sock:
            server.run(ServedModel(service, sock, api_key).serve(drain_timeout_s))
        return
    terminal = Terminal(
        service, Conversation(system), AnswerSettings(temperature, max_tokens, seed)
    )
    # A plain asyncio loop: it turns Ctrl-C into a cancellation of the answer that runs.
    with asyncio.Runner() if sock is None else BackgroundLoop(service, sock, api_key) as runner:
        if sock is not None:
            note_address(sock)
        try:
            terminal.run(runner, question)
        except BrokenPipeError:
            # The reader of a pipe has left; nothing is wrong, and nothing more can be written.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            # It ends within moments; an impatient second Ctrl-C must not break that off.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            runner.run(terminal.close())


class Terminal:
    """One chat: reads lines, writes answers as they come."""

    def __init__(
        self, service: ModelService, conversation: Conversation, settings: AnswerSettings
    ) -> None:
        self._service = service
        self._conversation = conversation
        self._settings = settings
        adapters = service.config.engine.adapters
        name = service.config.served_name
        self._model = f"{name}:{adapters[0].name}" if adapters else name

    def run(self, runner: Runner, question: str | None) -> None:
        """Answer one question, or chat until the person leaves."""
        runner.run(self._start())
        if question is not None:
            runner.run(self._answer(question))
            return
        _note(f"{self._model}: {clear_word} forgets, Ctrl-D leaves.")
        import readline  # noqa: F401, PLC0415 -- line editing for input(); only where it is used

        while (line := _read_line()) is not None:
            self.take_line(runner, line)

    def take_line(self, runner: Runner, line: str) -> None:
        """Answer a line; Ctrl-C stops the answer, an error leaves the chat going."""
        if line == clear_word:
            self._conversation.clear()
            return
        if command_pattern.fullmatch(line):
            _note(f"There is no {line}; {clear_word} forgets the conversation, Ctrl-D leaves.")
            return
        try:
            runner.run(self._answer(line))
        except KeyboardInterrupt:
            print()
        except ContextLengthExceeded as error:
            _note(f"headrace: {error.message} {clear_word} forgets the conversation.")
        except HeadraceError as error:
            _note(f"headrace: {error.message}")

    async def close(self) -> None:
        """End the engine."""
        await self._service.close()

    async def _start(self) -> None:
        await self._service.start()
        ready = await self._service.engine.wait_ready()
        for remark in ready.remarks:
            _note(f"headrace: {remark}")

    async def _answer(self, question: str) -> None:
        """Write the answer as it comes; what was written stays part of the conversation."""
        messages = self._conversation.messages
        messages.append(ChatMessage("user", question))
        request = self._conversation.request(self._model, self._settings)
        said: list[str] = []
        try:
            with await self._service.open(request, new_id("req", self._service.clock)) as text:
                finish_reason = None
                while finish_reason is None:
                    piece = await text.next()
                    finish_reason = piece.finish_reason
                    said.append(piece.text)
                    print(piece.text, end="", flush=True)
            print()
        finally:
            if said:
                messages.append(ChatMessage("assistant", "".join(said)))
            else:
                messages.pop()


def _question(prompt: str | None) -> str | None:
    """What to answer once: the option, what is piped in, or both; None means chat."""
    if sys.stdin.isatty() or (prompt is not None and not _is_piped()):
        return prompt
    data = sys.stdin.buffer.read(input_bytes_max + 1)
    if len(data) > input_bytes_max:
        raise ConfigurationError(f"Standard input has more than {input_bytes_max} bytes.")
    try:
        piped = data.decode().strip()
    except UnicodeDecodeError:
        raise ConfigurationError("Standard input is not UTF-8 text.") from None
    parts = [part for part in (prompt, piped) if part]
    if not parts:
        raise ConfigurationError("There is nothing to answer: standard input is empty; pass -p.")
    return "\n\n".join(parts)


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file, and not, say, /dev/null."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_line() -> str | None:
    """The next line that says something, or None when the person leaves."""
    while True:
        try:
            line = input(prompt_mark).strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return None
        if line in leave_words:
            return None
        if line:
            return line


def _note(message: str) -> None:
    print(message, file=sys.stderr)
