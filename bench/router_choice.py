"""How long does a routing decision take? A long prompt is hashed, matched and routed.

    python bench/router_choice.py [--endpoints 1000] [--prompt-tokens 32768] [--told]

Prints microseconds of hashing, of the choice with its lease, and of both, for each policy; half of
the prompts share a prefix that every endpoint has, a quarter one that a few have, and a quarter are
new. With `--told` every endpoint tells the blocks that it holds, and the match is exact. Garbage is
collected as a gateway's process does it.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence

from headrace.gateway.pauses import shorten_pauses
from headrace.router.decision_log import DecisionLog
from headrace.router.endpoint import EndpointSpec
from headrace.router.endpoint_set import EndpointSet, Pool
from headrace.router.lease import Lease, Work
from headrace.router.picker import Picker
from headrace.router.policies import policies
from headrace.router.prompt_prefix import bytes_per_token, prefix_of_body


def make_bodies(prompt_tokens: int, count: int, rng: random.Random) -> list[bytes]:
    size = prompt_tokens * bytes_per_token
    common = rng.randbytes(size).hex()[:size].encode()
    rare = [rng.randbytes(size).hex()[:size].encode() for _ in range(8)]
    bodies = []
    for number in range(count):
        if number % 2 == 0:
            text = common
        elif number % 4 == 1:
            text = rare[number % 8]
        else:
            text = rng.randbytes(size).hex()[:size].encode()
        bodies.append(b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}')
    return bodies


def tell(pool: Pool, bodies: Sequence[bytes], rng: random.Random) -> None:
    """What engines hold: the common prompt everywhere, rare ones on a few."""
    size = pool.blocks.block_size_tokens = 16
    seen: dict[bytes, list[bytes]] = {}
    for number, body in enumerate(bodies):
        tokens = len(body) // bytes_per_token
        if number % 2 == 0:
            hashes = seen.setdefault(b"common", [rng.randbytes(16) for _ in range(tokens // size)])
        elif number % 4 == 1:
            rare = body[60:80]
            hashes = seen.setdefault(rare, [rng.randbytes(16) for _ in range(tokens // size)])
        else:
            hashes = [rng.randbytes(16) for _ in range(tokens // size)]
        pool.blocks.learn(prefix_of_body(body, "tenant"), tokens, hashes)
    for place, endpoint in enumerate(pool.members):
        pool.blocks.told(endpoint.slot, seen[b"common"], (), 0.0)
        if place % 100 == 0:
            for hashes in seen.values():
                pool.blocks.told(endpoint.slot, hashes, (), 0.0)


def measure(
    policy_name: str, endpoint_count: int, bodies: Sequence[bytes], *, is_told: bool = False
) -> dict[str, float | str]:
    rng = random.Random(1)
    policy = policies[policy_name](rng)
    endpoints = EndpointSet()
    endpoints.update(
        EndpointSpec(f"rep_{number}", "ver_1", f"http://10.0.0.1:{number}")
        for number in range(endpoint_count)
    )
    picker = Picker(endpoints, rng, policy, log=DecisionLog())
    pool = endpoints.whole_pool("ver_1")
    assert pool is not None
    for endpoint in pool.members:
        pool.index.sent(endpoint.slot, prefix_of_body(bodies[0], "tenant"), 0.0)
    if is_told:
        tell(pool, bodies, rng)
    shorten_pauses()
    held: list[Lease] = []
    hash_us: list[float] = []
    choice_us: list[float] = []
    for number, body in enumerate(bodies):
        start_s = time.perf_counter()
        prefix = prefix_of_body(body, "tenant")
        hashed_s = time.perf_counter()
        work = Work(len(body) // bytes_per_token, 256, prefix, request_id=f"req_{number}")
        lease = picker.lease([("ver_1", 1)], work, hashed_s)
        chosen_s = time.perf_counter()
        hash_us.append((hashed_s - start_s) * 1e6)
        choice_us.append((chosen_s - hashed_s) * 1e6)
        held.append(lease)
        if len(held) > endpoint_count:
            held.pop(rng.randrange(len(held))).release()
    both = sorted(a + b for a, b in zip(hash_us, choice_us, strict=True))
    return {
        "policy": policy_name,
        "hash_p50_us": round(sorted(hash_us)[len(bodies) // 2], 1),
        "choice_p50_us": round(sorted(choice_us)[len(bodies) // 2], 1),
        "both_p50_us": round(both[len(both) // 2], 1),
        "both_p99_us": round(both[len(both) * 99 // 100], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--prompt-tokens", type=int, default=32_768)
    parser.add_argument("--choices", type=int, default=400)
    parser.add_argument("--policies", default="least-harm,prefix-affinity,two-choices")
    parser.add_argument("--told", action="store_true")
    options = parser.parse_args()
    bodies = make_bodies(options.prompt_tokens, options.choices, random.Random(7))
    for name in options.policies.split(","):
        print(json.dumps(measure(name, options.endpoints, bodies, is_told=options.told)))


if __name__ == "__main__":
    main()
