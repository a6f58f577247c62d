"""A prompt's KV on its way from the engine that computed it to the one that will use it.

    P: a request that hands over ──its first token──> KvParcel ──> lease, segment, socket
    D: the same request and a KvParcel ──refused or adopted──> blocks of its own, named as ever

Nothing is taken on trust but what the names say: the parcel's hashes chain over the tokens, the
adapter's digest, the tenant's salt and the cache's namespace under the key that both engines share,
and D computes them again from the request. Weights, precision and the machine's arithmetic are told
by the `fingerprint`, the KV of a fixed prompt: engines of one fingerprint would have computed the
same KV, so a split request's tokens are those of an unsplit one. Transport: `engine_server/kv_*`.
"""

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b

from headrace.engine.kv_parcel import KvParcel
from headrace.engine.runner import ModelRunner
from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Sequence

fingerprint_bytes = 32
probe_fingerprint = bytes(fingerprint_bytes)  # while an engine makes its own


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How a runner exports one block: a constant header, then the block."""

    header: bytes
    block_bytes: int  # header included

    @classmethod
    def of(cls, runner: ModelRunner) -> "KvLayout":
        """Ask the runner for its first block, once alone and once twice."""
        one, two = runner.export_blocks([0]), runner.export_blocks([0, 0])
        return cls(one[: 2 * len(one) - len(two)], len(one))

    def has(self, block: bytes) -> bool:
        """Whether the runner would take this block."""
        return len(block) == self.block_bytes and block.startswith(self.header)


class KvPort:
    """Where one engine's KV leaves and comes in; shut where it has no fingerprint."""

    def __init__(
        self, runner: ModelRunner, scheduler: Scheduler, fingerprint: bytes | None
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._fingerprint = fingerprint
        self._layout = None if fingerprint is None else KvLayout.of(runner)
        self.results: Counter[str] = Counter()  # of transfers
        self.exported_tokens_total = 0

    def export(self, sequence: Sequence) -> KvParcel | None:
        """The KV of all of a computed prompt but its last token.

        None of a prompt of one token, and where the port is shut."""
        token_count = sequence.prompt_count - 1
        if self._fingerprint is None or token_count < 1:
            return None
        kv = self._scheduler.kv
        block_ids = tuple(sequence.blocks[: kv.block_count(token_count)])
        self.results["exported"] += 1
        self.exported_tokens_total += token_count
        return KvParcel(
            self._fingerprint,
            kv.names(sequence, token_count),
            token_count,
            min(sequence.cached_tokens, token_count),
            [self._runner.export_blocks([block]) for block in block_ids],
            block_ids,
        )

    def adopt(self, sequence: Sequence, parcel: KvParcel) -> None:
        """Keep KV that came for a waiting sequence until it is admitted, if it is its own."""
        refusal = self._refusal(sequence, parcel)
        self.results[refusal or "imported"] += 1
        if refusal is None and self._scheduler.host is not None:
            self._scheduler.host.adopt(sequence, parcel.blocks, parcel.token_count)
            sequence.foreign_cached = parcel.cached_tokens

    def _refusal(self, sequence: Sequence, parcel: KvParcel) -> str | None:
        """Why a parcel is not of use to this sequence, in one word; None if it is."""
        kv, layout = self._scheduler.kv, self._layout
        if layout is None or sequence.prompt_logprobs is not None:
            return "unwanted"
        if parcel.fingerprint != self._fingerprint:
            return "fingerprint"
        count = kv.block_count(parcel.token_count)
        is_whole = len(parcel.blocks) == len(parcel.names) == count
        if not is_whole or not 0 < parcel.token_count < sequence.prompt_count:
            return "content"
        if parcel.names != kv.names(sequence, parcel.token_count):
            return "content"
        if not all(layout.has(block) for block in parcel.blocks):
            return "layout"
        return None


def fingerprint_of(parcel: KvParcel, layout_text: str) -> bytes:
    """What tells an engine's KV from another's: that of a probe, and how positions turn."""
    digest = blake2b(layout_text.encode(), digest_size=fingerprint_bytes, person=b"headrace kv fp")
    for block in parcel.blocks:
        digest.update(block)
    return digest.digest()
