"""An engine process's part in moving KV: what it gives, what it fetches, and who its like are.

`kv_lease` keeps what waits, `kv_server` gives it, `kv_queue` and `kv_fetch` get it; the words are
in `kv_wire`, and what makes KV of use to another engine in `engine/kv_transfer.py`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.engine.core import EngineCore
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.kv_transfer import KvLayout, fingerprint_of, probe_fingerprint
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.runner import AdapterRunner, ModelRunner
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.kv_fetch import Budget, KvFetcher
from headrace.engine_server.kv_lease import LeaseStore
from headrace.engine_server.kv_queue import FetchActions, FetchQueue, GoOn
from headrace.engine_server.kv_server import KvServer
from headrace.engine_server.kv_wire import transfer_key
from headrace.engine_server.messages import EngineConfig, KvHandover
from headrace.kernels.architecture import RopeScaling

fetch_timeout_s = 20.0  # then the prompt is computed
probe_stride = 7919  # a prime, so that the probe's tokens are spread over the vocabulary


class KvExchange:
    """Leases, the server and the fetcher of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        fingerprint: bytes,
        clock: Clock,
        *,
        go_on: GoOn,
        aborted: Callable[[str], None],
    ) -> None:
        """Gives and fetches from now on; requests `go_on` with what was fetched for them.

        ConfigurationError if the port is taken."""
        assert config.kv_transfers is not None
        assert config.prefix_key is not None, "engines that share no key cannot share KV"
        layout, wanted = KvLayout.of(runner), config.kv_transfers
        bytes_max = runner.info.num_blocks * layout.block_bytes  # as much again as the KV cache
        key = transfer_key(config.prefix_key)
        self._leases = LeaseStore(bytes_max, wanted.lease_s, clock)
        try:
            self._server = KvServer(
                self._leases, key, fingerprint, clock, host=wanted.host, port=wanted.port
            )
        except OSError as error:
            raise ConfigurationError(
                f"--kv-transfer-port {wanted.port} cannot be listened on at {wanted.host}: "
                f"{error.strerror}. Give another one, or 0 for any."
            ) from error
        self._fetcher = KvFetcher(
            key, fingerprint, layout.block_bytes, Budget(bytes_max), clock, fetch_timeout_s
        )
        self.queue = FetchQueue(FetchActions(self._fetcher.fetch, go_on, aborted))
        self._server.start()

    def hand_over(self, parcel: KvParcel) -> KvHandover | None:
        """Let a prompt's KV wait for another engine; None if there is no room."""
        transfer_id = self._leases.put(parcel)
        if transfer_id is None:
            return None
        server = self._server
        return KvHandover(transfer_id, server.engine_id, server.port, parcel.block_ids)

    @property
    def results(self) -> Counter[str]:
        """What became of transfers, beside what the engine counts itself."""
        return self._server.results + self._leases.results + self.queue.results


def make_fingerprint(runner: ModelRunner, scheduler: SchedulerConfig, clock: Clock) -> bytes:
    """The KV that this engine makes of one block's tokens, and how it turns positions.

    ConfigurationError if its context holds no block."""
    info = runner.info
    count = info.block_size_tokens + 1  # the last token's KV is not handed over
    config = replace(scheduler, kv_fingerprint=probe_fingerprint, public_prompts=())
    core = EngineCore(runner, config, clock)
    if count >= min(info.max_model_len, info.num_blocks * info.block_size_tokens):
        raise ConfigurationError(
            f"--kv-transfer needs a context of more than {count} tokens; raise --context-length."
        )
    prompt = tuple((1 + probe_stride * place) % info.vocab_size for place in range(count))
    request = EngineRequest("probe", prompt, SamplingParams(max_tokens=1), hands_over=True)
    core.submit(request)
    parcel: KvParcel | None = None
    while core.has_work():
        for output in core.step():
            parcel = output.parcel
    assert parcel is not None, "the probe is longer than one token"
    return fingerprint_of(parcel, _positions(runner))


def _positions(runner: ModelRunner) -> str:
    """What a probe of few tokens does not tell: how far positions are stretched."""
    if not isinstance(runner, AdapterRunner):
        return ""
    spec = runner.spec
    by_context = spec.rope_scaling in (RopeScaling.DYNAMIC, RopeScaling.LONGROPE)
    return f"{spec!r} {runner.info.max_model_len if by_context else 0}"
