"""An engine's /metrics as our terms: which sample names mean what.

Each term has alternatives, tried in order, because engines rename metrics between releases.
Counts are summed over an engine's data-parallel ranks (one label each); of a ratio the fullest
rank counts, because that one preempts first.
"""

from dataclasses import dataclass

from headrace.adapters.prometheus_text import read_values
from headrace.adapters.protocol import EngineLoad

Names = tuple[str, ...]

count_max = float(2**63)  # beyond it a counter is noise


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """The sample names of each term; empty where the engine has none."""

    running: Names = ()
    waiting: Names = ()
    kv_usage: Names = ()  # 0..1, without what can be reclaimed at once
    prompt_tokens: Names = ()
    completion_tokens: Names = ()
    cached_tokens: Names = ()
    preemptions: Names = ()

    def load(self, text: str) -> EngineLoad:
        """The live load; None for every term whose samples are missing or malformed."""
        wanted = frozenset(
            name
            for names in (
                self.running,
                self.waiting,
                self.kv_usage,
                self.prompt_tokens,
                self.completion_tokens,
                self.cached_tokens,
                self.preemptions,
            )
            for name in names
        )
        samples = read_values(text, wanted)

        def values(names: Names) -> list[float]:
            return next((samples[name] for name in names if name in samples), [])

        def count(names: Names) -> int | None:
            found = [value for value in values(names) if value >= 0]
            return int(min(sum(found), count_max)) if found else None

        ratios = [value for value in values(self.kv_usage) if value >= 0]
        return EngineLoad(
            running_requests=count(self.running),
            waiting_requests=count(self.waiting),
            kv_usage=min(1.0, max(ratios)) if ratios else None,
            prompt_tokens_total=count(self.prompt_tokens),
            completion_tokens_total=count(self.completion_tokens),
            cached_tokens_total=count(self.cached_tokens),
            preemptions_total=count(self.preemptions),
        )
