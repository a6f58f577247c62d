"""What moving a prompt's KV between two engines costs, against computing it again: CPU time.

    python bench/kv_transfer.py [MODEL] [--tokens 256,512,1024]

Both engines are in this process, each with one thread, so its CPU time is that of both sides:
export, segment, socket, import. The last token of the prompt, which the second engine computes, is
timed apart.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headrace.base.clock import SystemClock
from headrace.cli.settings import default_cache_dir
from headrace.engine.core import EngineCore
from headrace.engine.cpu_runner import CpuRunner
from headrace.engine.kv_parcel import KvParcel
from headrace.engine.kv_transfer import KvLayout
from headrace.engine.request import EngineRequest, SamplingParams
from headrace.engine.scheduler import SchedulerConfig
from headrace.engine_server.kv_exchange import make_fingerprint
from headrace.engine_server.kv_fetch import Budget, KvFetcher
from headrace.engine_server.kv_lease import LeaseStore
from headrace.engine_server.kv_server import KvServer
from headrace.engine_server.messages import KvSource
from headrace.sim.progress import SilentProgress
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.model_file import open_model
from headrace.weights.sources import resolve

clock = SystemClock()
key = b"k" * 32
one_token = SamplingParams(temperature=0, max_tokens=1)
bytes_max = 1 << 30


@contextmanager
def engine(model: str, kv_tokens: int) -> Iterator[tuple[EngineCore, CpuRunner, bytes]]:
    """One engine of the model with one thread."""
    path = resolve(model, default_cache_dir(), SilentProgress()).path
    with (
        open_model(path) as file,
        CpuRunner(
            file,
            read_architecture(file),
            kv_tokens=kv_tokens,
            rows_max=128,
            sequences_max=8,
            threads=1,
        ) as runner,
    ):
        config = SchedulerConfig(key)
        fingerprint = make_fingerprint(runner, config, clock)
        yield (
            EngineCore(runner, replace(config, kv_fingerprint=fingerprint), clock),
            runner,
            fingerprint,
        )


def run(
    core: EngineCore, request: EngineRequest, parcel: KvParcel | None = None
) -> KvParcel | None:
    """The request's parcel, if it hands one over."""
    core.submit(request, parcel)
    found = None
    while core.has_work():
        for output in core.step():
            found = output.parcel or found
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", default="256,512,1024")
    options = parser.parse_args()
    lengths = [int(text) for text in options.tokens.split(",")]
    kv_tokens = 2 * sum(lengths) + 512
    print("| tokens | KV, MB | compute, ms | shared memory, ms | TCP, ms | last token, ms |")
    print("|---:|---:|---:|---:|---:|---:|")
    with engine(options.model, kv_tokens) as ours, engine(options.model, kv_tokens) as theirs:
        for length in lengths:
            print(row(length, ours, theirs), flush=True)


def row(
    length: int,
    ours: tuple[EngineCore, CpuRunner, bytes],
    theirs: tuple[EngineCore, CpuRunner, bytes],
) -> str:
    """One length's figures."""
    core, runner, fingerprint = ours
    other, its_runner, _ = theirs
    store = LeaseStore(bytes_max, 60.0, clock)
    server = KvServer(store, key, fingerprint, clock, host="127.0.0.1", port=0)
    server.start()
    layout = KvLayout.of(runner)
    fetcher = KvFetcher(key, fingerprint, layout.block_bytes, Budget(bytes_max), clock, 60.0)
    cells: list[tuple[float, float, float]] = []
    size = 0
    for engine_id in (server.engine_id, "0" * 32):
        prompt = tuple((7 + len(cells) + 31 * place) % 4096 for place in range(length))
        begun = time.process_time()
        parcel = run(core, EngineRequest("p", prompt, one_token, hands_over=True))
        computed = time.process_time() - begun
        assert parcel is not None
        begun = time.process_time()
        for block in parcel.block_ids:  # once more, as it is part of the step above
            runner.export_blocks([block])
        size = sum(map(len, parcel.blocks))
        transfer_id = store.put(parcel)
        assert transfer_id is not None
        came = fetcher.fetch(KvSource(transfer_id, engine_id, "127.0.0.1", server.port))
        blocks = list(range(len(came.blocks)))
        for block in blocks:  # as the host store restores them
            its_runner.import_blocks([block], came.blocks[block])
        moved = time.process_time() - begun
        other.reset_cache(None)
        begun = time.process_time()
        run(other, EngineRequest("d", prompt, one_token), came)
        last = time.process_time() - begun
        cells.append((computed, moved, last))
    server.close()
    (computed, local, last), (_, tcp, _) = cells
    figures = (computed, local, tcp, last)
    return (
        f"| {length} | {size / 1e6:.1f} | " + " | ".join(f"{1000 * s:.1f}" for s in figures) + " |"
    )


if __name__ == "__main__":
    main()
