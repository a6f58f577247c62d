"""A soak of the engine process: random requests and aborts for minutes, its memory watched.

    python bench/engine_soak.py MODEL.gguf [--minutes 10]

One engine process is driven as the HTTP process does it: arrivals, choices, deadlines, aborts in
every state. Each ten seconds its resident memory and its pool are noted. At the end nothing may be
held, and memory must not have grown by more than `growth_mb_max` since the first minute.
"""

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from headrace.base.clock import SystemClock
from headrace.base.errors import HeadraceError
from headrace.engine_server.engine_client import EngineClient
from headrace.engine_server.messages import EngineConfig, Submit
from headrace.engine_server.usage_log import UsageLog

growth_mb_max = 16.0
sample_s = 10.0
clients = 24
vocabulary = 1000  # token ids below this exist in every model


def resident_mb(pid: int) -> float:
    """The process's resident memory (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def submit_of(rng: random.Random, request_id: str) -> Submit:
    shared = list(range(rng.choice([0, 32, 96])))
    return Submit(
        request_id=request_id,
        prompt_token_ids=shared + [rng.randrange(vocabulary) for _ in range(rng.randint(1, 120))],
        temperature=rng.choice([0.0, 0.8]),
        top_k=0,
        top_p=0.95,
        min_p=0.0,
        seed=rng.getrandbits(64),
        max_tokens=rng.randint(1, 60),
        min_tokens=0,
        stop_token_ids=[],
        cache_salt=rng.choice(["", "a", "b"]),
        choice_count=rng.choice([1, 1, 1, 3]),
        timeout_s=rng.choice([None, None, 0.5]),
    )


async def one_client(
    client: EngineClient, usage: UsageLog, number: int, counts: dict[str, int], stop: asyncio.Event
) -> None:
    """Requests one after the other, a third of them left at a random moment."""
    rng = random.Random(number)
    while not stop.is_set():
        request_id = f"c{number}-{counts['requests']}"
        counts["requests"] += 1
        usage.begin(request_id)
        stream = client.submit(submit_of(rng, request_id))
        leaves_after = rng.choice([None, None, rng.randint(0, 8)])
        try:
            while stream.is_open:
                if leaves_after == 0:
                    client.abort(request_id)
                    counts["aborts"] += 1
                    await usage.find(request_id, 60)
                    break
                await stream.next()
                leaves_after = None if leaves_after is None else leaves_after - 1
        except HeadraceError as error:
            sys.exit(f"{request_id} failed: {error.message}")


async def soak(model: Path, minutes: float) -> dict[str, Any]:
    """Run it; the samples and what was left."""
    config = EngineConfig(
        model_path=str(model),
        kv_tokens=2048,
        sequences_max=16,
        step_rows=128,
        waiting_max=256,
        cache_namespace="soak",
        draft_tokens_max=8,
        host_tokens=512,
    )
    usage, clock = UsageLog(), SystemClock()
    client = EngineClient(config, clock, on_end=usage.end)
    client.start()
    await client.wait_ready()
    assert client.pid is not None
    stop, counts = asyncio.Event(), {"requests": 0, "aborts": 0}
    tasks = [
        asyncio.create_task(one_client(client, usage, number, counts, stop))
        for number in range(clients)
    ]
    end_s = clock.monotonic_s() + minutes * 60
    samples = []
    while clock.monotonic_s() < end_s:
        await asyncio.sleep(min(sample_s, minutes * 60 / 4))
        samples.append(round(resident_mb(client.pid), 1))
    stop.set()
    await asyncio.gather(*tasks)
    stats = await client.stats(60)
    await client.close()
    if stats is None:
        sys.exit("the engine does not answer")
    return {
        **counts,
        "preemptions": stats.preemptions_total,
        "tokens": stats.completion_tokens_total,
        "restarts": client.restart_count,
        "recomputed_tokens": stats.recomputed_tokens_total,
        "restored_tokens": stats.restored_tokens_total,
        "held_blocks": stats.kv_blocks_used + stats.leaked_blocks_total,
        "host_blocks": stats.host_blocks,
        "running": stats.running_requests,
        "waiting": stats.waiting_requests,
        "resident_mb": samples,
        "growth_mb": round(samples[-1] - samples[len(samples) // 10], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    result = asyncio.run(soak(arguments.model, arguments.minutes))
    print(json.dumps(result))
    nothing = ("held_blocks", "host_blocks", "running", "waiting", "restarts")
    leaks = [name for name in nothing if result[name]]
    if leaks or result["growth_mb"] > growth_mb_max:
        sys.exit(f"leaked: {leaks or 'memory'}")


if __name__ == "__main__":
    main()
