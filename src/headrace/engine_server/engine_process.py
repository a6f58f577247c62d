"""The engine process: loads one model and steps its engine; talks only over an inherited socket.

    python -m headrace.engine_server.engine_process FD

The main thread steps. A second thread reads the socket, so that a submit or an abort is in the
engine's queues before the next step begins, and so that the process ends at once, also in the
middle of a step, when the HTTP process goes away. Signals of the terminal and of process managers
are for the HTTP process; this one lives exactly as long as the socket.
"""

import dataclasses
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.base.clock import SystemClock
from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.engine.core import EngineCore
from headrace.engine.intake import context_limit
from headrace.engine.request import (
    Adapter,
    EngineRequest,
    RequestOutput,
    SamplingParams,
    ThoughtBudget,
    TokenConstraint,
    TokenLogprobs,
)
from headrace.engine.runner import ModelRunner
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server import messages
from headrace.engine_server.adapter_shelf import AdapterShelf
from headrace.engine_server.encoder_process import EncoderLoop, TextEncoder, load_encoder
from headrace.engine_server.grammar_queue import GrammarActions, GrammarQueue
from headrace.engine_server.grammars import GrammarCompiler
from headrace.engine_server.messages import EngineConfig, rejection

read_bytes = 256 * 1024
warm_up_prompt = (0, 0)
out_of_memory = (
    "There is not enough memory for this model and its KV cache; lower --kv-tokens, or use a "
    "smaller model."
)

ReportLoading = Callable[[str, float], None]
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
        self._shelf: AdapterShelf | None = None
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
                    self._send(messages.Outputs([_wire_output(output) for output in outputs]))
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
        runner = self._load_runner(config, self._report_loading)
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
        )
        self._shelf = AdapterShelf(runner, config, self._report_loading)
        _warm_up(EngineCore(runner, scheduler, self._clock))
        # A core of its own, so that the warm-up is in no counter and in no cache.
        core = EngineCore(runner, scheduler, self._clock)
        core.record_cache_changes()
        info = runner.info
        compiler = GrammarCompiler(Path(config.model_path), info.vocab_size)
        self._grammars = self._start_grammars(core, compiler)
        self._send(
            messages.Ready(
                context_length=context_limit(info),
                vocab_size=info.vocab_size,
                kernel_name=info.kernel_name,
                kv_blocks=info.num_blocks,
                block_size_tokens=info.block_size_tokens,
                adapters=self._shelf.loaded(),
            )
        )
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
            try:
                if message.grammar is None:
                    self._submit(core, message, None)
                else:
                    assert self._grammars is not None, "requests come after the start"
                    self._grammars.put(message)
            except HeadraceError as error:
                self._send(rejection(message.request_id, error))
        elif isinstance(message, messages.Abort):
            if self._grammars is None or not self._grammars.abort(message.request_id):
                core.abort(message.request_id, message.index)
        elif isinstance(message, messages.ResetCache):
            core.reset_cache(message.salt)
        elif isinstance(message, messages.DiscardKv):
            core.discard_kv()
            self._send(messages.Done(message.call_id, self._adapters.loaded()))
        elif isinstance(message, messages.AdapterCall):
            self._adapters.start(message, self._answer_call)
        else:
            assert isinstance(message, messages.AskStats), "the configuration comes once"
            self._send(_wire_stats(core))

    def _submit(
        self, core: EngineCore, message: messages.Submit, constraint: TokenConstraint | None
    ) -> None:
        now_s, shelf = self._clock.monotonic_s(), self._adapters
        with shelf.lock:  # two threads come here
            adapter = shelf.find(message.adapter)
            core.submit(_engine_request(message, constraint, now_s, adapter))
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
            submit=lambda message, constraint: self._submit(core, message, constraint),
            reject=lambda request_id, error: self._send(rejection(request_id, error)),
            aborted=lambda request_id: self._send(
                messages.Outputs([messages.Output(request_id, [], "abort", 0, 0, 0)])
            ),
        )
        return GrammarQueue(actions, self._clock)

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


def load_cpu_runner(config: EngineConfig, report: ReportLoading) -> ModelRunner:
    """Open the model file and put it on this machine's CPU."""
    # These imports are the slow part of the start; they belong to the progress that is reported.
    from headrace.engine.cpu_runner import CpuRunner  # noqa: PLC0415
    from headrace.weights.architecture_reader import read_architecture  # noqa: PLC0415
    from headrace.weights.model_file import open_model  # noqa: PLC0415

    report("reading the model file", 0.05)
    with open_model(Path(config.model_path)) as file:
        spec = read_architecture(file)
        if config.context_length is not None:
            check_context_length(config, config.context_length, spec.context_length)
            spec = dataclasses.replace(spec, context_length=config.context_length)
        report("loading weights", 0.1)
        return CpuRunner(
            file,
            spec,
            kv_tokens=config.kv_tokens,
            rows_max=config.step_rows,
            sequences_max=config.step_rows,  # a draft's row is a sequence of its own to it
            threads=config.threads,
            kv_cache_dtype=config.kv_cache_dtype,
            adapters_max=config.adapters_max,
            adapter_rank_max=config.adapter_rank_max,
        )


def check_context_length(config: EngineConfig, wanted: int, model_limit: int) -> None:
    """Refuse a context that the model or the KV cache cannot hold, rather than lower it."""
    if wanted > model_limit:
        raise ConfigurationError(
            f"--context-length is {wanted}, but this model was made for {model_limit} tokens; "
            "give at most that."
        )
    if wanted > config.kv_tokens:
        raise ConfigurationError(
            f"--context-length is {wanted}, but the KV cache holds {config.kv_tokens} tokens; "
            "lower it, or raise --kv-tokens."
        )


def blocks_of(token_count: int | None, block_size_tokens: int) -> int | None:
    """Whole blocks of so many tokens, at least one."""
    return None if token_count is None else max(1, token_count // block_size_tokens)


def _warm_up(core: EngineCore) -> None:
    """Generate one real token: what works once is ready."""
    core.submit(EngineRequest("warm-up", warm_up_prompt, SamplingParams(max_tokens=1)))
    while core.has_work():
        core.step()


def _engine_request(
    message: messages.Submit,
    constraint: TokenConstraint | None,
    now_s: float,
    adapter: Adapter | None,
) -> EngineRequest:
    return EngineRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling=SamplingParams(
            temperature=message.temperature,
            top_k=message.top_k,
            top_p=message.top_p,
            min_p=message.min_p,
            typical_p=message.typical_p,
            xtc_threshold=message.xtc_threshold,
            xtc_probability=message.xtc_probability,
            seed=message.seed,
            max_tokens=message.max_tokens,
            min_tokens=message.min_tokens,
            stop_token_ids=frozenset(message.stop_token_ids),
            repetition_penalty=message.repetition_penalty,
            frequency_penalty=message.frequency_penalty,
            presence_penalty=message.presence_penalty,
            logit_bias=message.logit_bias,
            allowed_token_ids=_frozen(message.allowed_token_ids),
            bad_words=message.bad_words,
            top_logprobs=message.top_logprobs,
            prompt_logprobs=message.prompt_logprobs,
            ignore_eos=message.ignore_eos,
            dry_multiplier=message.dry_multiplier,
            dry_base=message.dry_base,
            dry_allowed_length=message.dry_allowed_length,
            dry_breakers=frozenset(message.dry_breakers),
            thought_budget=_thought_budget(message.thought_budget),
        ),
        priority=message.priority,
        cache_salt=message.cache_salt,
        constraint=constraint,
        choice_count=message.choice_count,
        more_prompts=message.more_prompts,
        deadline_s=None if message.timeout_s is None else now_s + message.timeout_s,
        adapter=adapter,
    )


def _thought_budget(budget: messages.ThoughtBudget | None) -> ThoughtBudget | None:
    if budget is None:
        return None
    return ThoughtBudget(budget.token_count, budget.closing_id, budget.opening_id)


def _frozen(token_ids: tuple[int, ...] | None) -> frozenset[int] | None:
    return None if token_ids is None else frozenset(token_ids)


def _wire_output(output: RequestOutput) -> messages.Output:
    usage = output.usage
    return messages.Output(
        output.request_id,
        list(output.token_ids),
        output.finish_reason,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        output.error,
        output.queue_s,
        _wire_logprobs(output.logprobs),
        output.index,
        output.cumulative_logprob,
        _wire_logprobs(output.prompt_logprobs),
        output.is_callers_error,
    )


def _wire_logprobs(tokens: tuple[TokenLogprobs, ...]) -> tuple[messages.WireLogprobs, ...]:
    return tuple((token.logprob, token.top) for token in tokens)


def _wire_stats(core: EngineCore) -> messages.Stats:
    stats = core.stats()
    return messages.Stats(
        **{name: getattr(stats, name) for name in messages.Stats.__struct_fields__}
    )


def main(arguments: list[str]) -> None:
    """Serve the socket that this process inherited as file descriptor `arguments[0]`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(arguments[0])) as sock:
        EngineProcess(sock, load_cpu_runner, load_encoder).run()


if __name__ == "__main__":
    main(sys.argv[1:])
