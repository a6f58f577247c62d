"""The engine process: loads one model and steps its engine; talks only over an inherited socket.

    python -m headrace.engine_server.engine_process FD

The main thread steps. A second thread reads the socket, so that a submit or an abort is in the
engine's queues before the next step begins, and so that the process ends at once, also in the
middle of a step, when the HTTP process goes away. Signals of the terminal and of process managers
are for the HTTP process; this one lives exactly as long as the socket.
"""

import os
import secrets
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from headrace.base.clock import SystemClock
from headrace.base.errors import HeadraceError
from headrace.engine.core import EngineCore
from headrace.engine.intake import context_limit
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.request import (
    EngineRequest,
    RequestOutput,
    SamplingParams,
    TokenConstraint,
)
from headrace.engine.runner import ModelRunner
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server import messages
from headrace.engine_server.adapter_shelf import AdapterShelf
from headrace.engine_server.encoder_process import EncoderLoop, TextEncoder, load_encoder
from headrace.engine_server.grammar_queue import GrammarActions, GrammarQueue
from headrace.engine_server.grammars import GrammarCompiler
from headrace.engine_server.kv_exchange import KvExchange, make_fingerprint
from headrace.engine_server.load_checks import probe_load
from headrace.engine_server.loading import (
    ReportLoading,
    blocks_of,
    load_cpu_runner,
    load_draft_model,
    out_of_memory,
)
from headrace.engine_server.messages import EngineConfig, rejection
from headrace.engine_server.public_prompts import read_public_prompts
from headrace.engine_server.rank_processes import end_engine
from headrace.engine_server.stop_strings import TokenTexts
from headrace.engine_server.weights_check import start_check
from headrace.engine_server.wire import engine_request, wire_output, wire_stats

read_bytes = 256 * 1024
warm_up_prompt = (0, 0)

LoadEncoder = Callable[[EngineConfig, ReportLoading], TextEncoder | None]
LoadRunner = Callable[[EngineConfig, ReportLoading], ModelRunner]


class EngineProcess:
    """Joins one EngineCore to one socket."""

    def __init__(
        self,
        sock: socket.socket,
        load_runner: LoadRunner,
        load_encoder: LoadEncoder = lambda _config, _report: None,
    ) -> None:
        self._sock = sock
        self._clock = SystemClock()
        self._load_runner = load_runner
        self._load_encoder = load_encoder
        self._grammars: GrammarQueue | None = None
        self._texts: TokenTexts | None = None  # once the HTTP process has sent them
        self._shelf: AdapterShelf | None = None
        self._exchange: KvExchange | None = None  # of an engine that moves KV
        self._send_lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._buffer = messages.FrameBuffer()
        self._decode = msgspec.msgpack.Decoder(messages.ToEngine).decode

    def run(self) -> None:
        """Load, then step until the socket closes."""
        config = self._read_config()
        if config is None:
            return
        threading.Thread(target=exit_when_alone, args=(self._sock,), daemon=True).start()
        try:
            encoder = self._load_encoder(config, self._report_loading)
            if encoder is not None:
                self._embed(encoder)
                return
            core = self._load(config)
        except HeadraceError as error:
            self._send(messages.Failed(error.message))
            return
        except MemoryError:
            self._send(messages.Failed(out_of_memory))
            return
        self._start_reading(lambda message: self._handle(core, message))
        shelf = self._adapters
        while not self._closed.is_set():
            shelf.free_unused(core.adapters_in_use)
            if core.has_work():
                outputs = core.step()
                if outputs:
                    self._send(messages.Outputs([self._wire(output) for output in outputs]))
                if changes := core.take_cache_changes():
                    pairs = [(change.stored, change.content_hash) for change in changes]
                    self._send(messages.CacheChanges(pairs))
            else:
                self._wake.wait()
                self._wake.clear()

    def _embed(self, encoder: TextEncoder) -> None:
        """Serve an embedding model; the thread that reads ends the process."""
        self._report_loading("warming up", 0.95)
        loop = EncoderLoop(encoder, self._send)
        loop.start()
        self._start_reading(loop.handle)
        loop.run()

    def _load(self, config: EngineConfig) -> EngineCore:
        started_s = self._clock.monotonic_s()
        runner = self._load_runner(config, self._report_loading)
        load_s = self._clock.monotonic_s() - started_s
        self._report_loading("warming up", 0.95)
        scheduler = SchedulerConfig(
            prefix_cache_key=config.prefix_key or secrets.token_bytes(32),
            salt_blocks_max=blocks_of(config.salt_tokens_max, runner.info.block_size_tokens),
            cache_namespace=config.cache_namespace,
            step_rows=config.step_rows,
            sequences_max=config.sequences_max,
            waiting_max=config.waiting_max,
            draft_tokens_max=config.draft_tokens_max,
            target_step_s=config.target_step_s,
            public_prompts=read_public_prompts(config),
            host_blocks_max=config.host_tokens // runner.info.block_size_tokens,
        )
        self._shelf = AdapterShelf(runner, config, self._report_loading)
        first_core = EngineCore(runner, scheduler, self._clock)
        _warm_up(first_core)
        self._report_loading("reading a few words", 0.97)
        remarks = probe_load(config, first_core, runner.info, self._clock, load_s)
        if config.kv_transfers is not None:
            fingerprint = make_fingerprint(runner, scheduler, self._clock)
            scheduler = replace(scheduler, kv_fingerprint=fingerprint)
        # A core of its own, so that the warm-up and the probe are in no counter and in no cache.
        draft_model = load_draft_model(config, self._report_loading, runner, self._clock)
        core = EngineCore(runner, scheduler, self._clock, draft_model)
        core.record_cache_changes()
        info = runner.info
        compiler = GrammarCompiler(Path(config.model_path), info.vocab_size)
        self._grammars = self._start_grammars(core, compiler)
        if scheduler.kv_fingerprint is not None:
            self._exchange = KvExchange(
                config,
                runner,
                scheduler.kv_fingerprint,
                self._clock,
                go_on=lambda message, parcel: self._accept(core, message, parcel),
                aborted=self._send_aborted,
            )
        self._send(
            messages.Ready(
                context_length=context_limit(info),
                vocab_size=info.vocab_size,
                kernel_name=info.kernel_name,
                kv_blocks=info.num_blocks,
                block_size_tokens=info.block_size_tokens,
                adapters=self._shelf.loaded(),
                remarks=remarks,
                activation_bits=info.activation_bits,
            )
        )
        for each in (runner, None if draft_model is None else draft_model.runner):
            start_check(each, end_engine)
        return core

    def _report_loading(self, detail: str, progress: float) -> None:
        self._send(messages.Loading(detail, progress))

    def _read_config(self) -> EngineConfig | None:
        """The first frame; None if the HTTP process went away before it."""
        while data := self._receive():
            for body in self._buffer.feed(data):
                config = self._decode(body)
                assert isinstance(config, EngineConfig), "the first frame is the configuration"
                return config
        return None

    def _start_reading(self, handle: Callable[[messages.ToEngine], None]) -> None:
        threading.Thread(target=self._read_requests, args=(handle,), daemon=True).start()

    def _read_requests(self, handle: Callable[[messages.ToEngine], None]) -> None:
        """Hand on messages until the socket closes, then end the process, whatever it computes."""
        try:
            while data := self._receive():
                for body in self._buffer.feed(data):
                    handle(self._decode(body))
                self._wake.set()
        finally:
            self._closed.set()
            self._wake.set()
            exit_now()

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(read_bytes)
        except ConnectionError:
            return b""

    def _handle(self, core: EngineCore, message: messages.ToEngine) -> None:
        if isinstance(message, messages.Submit):
            if message.kv_source is None or self._exchange is None:
                self._accept(core, message, None)
            else:
                self._exchange.queue.put(message)
        elif isinstance(message, messages.Abort):
            if not self._abort_early(message.request_id):
                core.abort(message.request_id, message.index)
        elif isinstance(message, messages.Vocabulary):
            self._texts = TokenTexts(message)
        elif isinstance(message, messages.ResetCache):
            core.reset_cache(message.salt)
        elif isinstance(message, messages.DiscardKv):
            core.discard_kv()
            self._send(messages.Done(message.call_id, self._adapters.loaded()))
        elif isinstance(message, messages.AdapterCall):
            self._adapters.start(message, self._answer_call)
        else:
            assert isinstance(message, messages.AskStats), "the configuration comes once"
            waiting = 0 if self._grammars is None else self._grammars.count
            fetching = 0 if self._exchange is None else self._exchange.queue.count
            results = {} if self._exchange is None else self._exchange.results
            self._send(wire_stats(core, waiting, fetching, results))

    def _accept(self, core: EngineCore, message: messages.Submit, parcel: KvParcel | None) -> None:
        """Let a request go on, with the KV that came for it, to its grammar or the engine."""
        try:
            if message.grammar is None:
                self._submit(core, message, None, parcel)
            else:
                assert self._grammars is not None, "requests come after the start"
                self._grammars.put(message, parcel)
        except HeadraceError as error:
            self._send(rejection(message.request_id, error))

    def _abort_early(self, request_id: str) -> bool:
        """Whether a request had not come to the engine yet, and was given up before it did."""
        if self._exchange is not None and self._exchange.queue.abort(request_id):
            return True
        return self._grammars is not None and self._grammars.abort(request_id)

    def _submit(
        self,
        core: EngineCore,
        message: messages.Submit,
        constraint: TokenConstraint | None,
        parcel: KvParcel | None,
    ) -> None:
        now_s, shelf = self._clock.monotonic_s(), self._adapters
        end = None if self._texts is None else self._texts.end_of(message)
        with shelf.lock:  # two threads come here
            adapter = shelf.find(message.adapter)
            core.submit(engine_request(message, constraint, now_s, adapter, end), parcel)
        self._wake.set()

    def _answer_call(self, message: messages.FromEngine) -> None:
        self._send(message)
        self._wake.set()  # an adapter may be free to go

    @property
    def _adapters(self) -> AdapterShelf:
        assert self._shelf is not None, "requests come after the start"
        return self._shelf

    def _start_grammars(self, core: EngineCore, compiler: GrammarCompiler) -> GrammarQueue:
        actions = GrammarActions(
            compile=compiler.compile,
            submit=lambda message, constraint, parcel: self._submit(
                core, message, constraint, parcel
            ),
            reject=lambda request_id, error: self._send(rejection(request_id, error)),
            aborted=self._send_aborted,
        )
        return GrammarQueue(actions, self._clock)

    def _send_aborted(self, request_id: str) -> None:
        self._send(messages.Outputs([messages.Output(request_id, [], "abort", 0, 0, 0)]))

    def _wire(self, output: RequestOutput) -> messages.Output:
        handover = None
        if output.parcel is not None and self._exchange is not None:
            handover = self._exchange.hand_over(output.parcel)
        return wire_output(output, handover)

    def _send(self, message: messages.FromEngine) -> None:
        """Write one frame; blocks while the HTTP process does not keep up."""
        frame = messages.encode_frame(message)
        try:
            with self._send_lock:
                self._sock.sendall(frame)
        except ConnectionError:
            exit_now()


def exit_now() -> None:
    """End this process without waiting for the step that runs: nobody is left to tell."""
    os._exit(0)


def exit_when_alone(sock: socket.socket) -> None:
    """End this process when nobody is at the other end, also while it loads and reads nothing."""
    end = select.poll()
    end.register(sock, 0)  # a hang-up is told without being asked for
    end.poll()
    exit_now()


def _warm_up(core: EngineCore) -> None:
    """Generate one real token: what works once is ready."""
    core.submit(EngineRequest("warm-up", warm_up_prompt, SamplingParams(max_tokens=1)))
    while core.has_work():
        core.step()


def main(arguments: list[str]) -> None:
    """Serve the socket that this process inherited as file descriptor `arguments[0]`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(arguments[0])) as sock:
        EngineProcess(sock, load_cpu_runner, load_encoder).run()


if __name__ == "__main__":
    main(sys.argv[1:])
