"""Billed tokens against each engine's own counters: no difference, or why there is one. Pure.

An engine's counters begin at 0 with each process. So what it counted between two samples is the
sum of its processes' growth; what a process counted after its last sample nobody knows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from headrace.storage.engine_samples import BilledTokens, EngineSample


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """One replica between its first and last sample of a time."""

    replica_id: str
    since: float
    until: float
    engine_prompt_tokens: int
    engine_completion_tokens: int
    billed_prompt_tokens: int
    billed_completion_tokens: int
    requests: int
    reasons: list[str]  # that can make a difference

    @property
    def difference_tokens(self) -> int:
        """What the engine counted and nobody was billed; negative: the other way round."""
        counted = self.engine_prompt_tokens + self.engine_completion_tokens
        return counted - self.billed_prompt_tokens - self.billed_completion_tokens

    @property
    def is_explained(self) -> bool:
        """Whether there is no difference, or a reason for one."""
        is_equal = (
            self.engine_prompt_tokens == self.billed_prompt_tokens
            and self.engine_completion_tokens == self.billed_completion_tokens
        )
        return is_equal or bool(self.reasons)


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in a report, and what it was: empty where it is gone."""

    engine: str
    model: str
    compared: Reconciled


def differing_tokens(rows: Iterable[Reconciled]) -> int:
    """How many tokens differ, whichever way; a surplus here makes good no lack there."""
    return sum(
        abs(row.engine_prompt_tokens - row.billed_prompt_tokens)
        + abs(row.engine_completion_tokens - row.billed_completion_tokens)
        for row in rows
    )


def adjoining(
    samples: Mapping[str, Sequence[EngineSample]], end_time: float
) -> dict[str, Sequence[EngineSample]]:
    """Each replica's samples up to its first one at `end_time` or later: there the next begins."""
    return {
        replica_id: own[: 1 + sum(sample.sample_time < end_time for sample in own)]
        for replica_id, own in samples.items()
        if own[0].sample_time < end_time
    }


def reconcile(
    samples: Mapping[str, Sequence[EngineSample]],
    billed: Callable[[str, float, float], BilledTokens],
) -> list[Reconciled]:
    """One row a replica that has two samples or more."""
    return [
        reconcile_replica(replica_id, own, billed)
        for replica_id, own in sorted(samples.items())
        if len(own) > 1
    ]


def reconcile_replica(
    replica_id: str,
    samples: Sequence[EngineSample],
    billed: Callable[[str, float, float], BilledTokens],
) -> Reconciled:
    """Compare what one replica counted with what was billed between the same moments."""
    first, last = samples[0], samples[-1]
    settled = billed(replica_id, first.sample_time, last.sample_time)
    prompt, completion = growth(samples)
    return Reconciled(
        replica_id=replica_id,
        since=first.sample_time,
        until=last.sample_time,
        engine_prompt_tokens=prompt,
        engine_completion_tokens=completion,
        billed_prompt_tokens=settled.prompt_tokens,
        billed_completion_tokens=settled.completion_tokens,
        requests=settled.requests,
        reasons=reasons(samples, settled),
    )


def growth(samples: Sequence[EngineSample]) -> tuple[int, int]:
    """What the counters grew by, over all processes."""
    prompt = completion = 0
    for number, (_, group) in enumerate(groupby(samples, key=lambda sample: sample.generation)):
        own = list(group)
        begin = own[0] if number == 0 else None  # a later process began at 0
        prompt += own[-1].prompt_tokens - (begin.prompt_tokens if begin else 0)
        completion += own[-1].completion_tokens - (begin.completion_tokens if begin else 0)
    return prompt, completion


def reasons(samples: Sequence[EngineSample], settled: BilledTokens) -> list[str]:
    """What can make a difference."""
    found: list[str] = []
    restarts = len({sample.generation for sample in samples}) - 1
    if restarts:
        found.append(
            f"the engine started anew {restarts} times; what it counted after its last sample is "
            "not known"
        )
    for name, sample in (("first", samples[0]), ("last", samples[-1])):
        if sample.running_requests is None:
            found.append(f"whether requests ran at the {name} sample is not known")
        elif sample.running_requests:
            found.append(
                f"{sample.running_requests} requests ran at the {name} sample, counted on one side "
                "only"
            )
    if settled.inexact_requests:
        found.append(f"{settled.inexact_requests} requests were not counted by the engine")
    return found
