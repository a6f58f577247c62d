"""Whether a new generation does harm that the old one does not do, from what gateways counted.

    more of its attempts fail | its first tokens come later | fewer come in time

Each is a difference between the generations while both serve, so that a bad hour for both rolls
nothing back; and each needs `requests_min` of the new one, because few requests prove nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.spec.rollout import RolloutPolicy
from headrace.spec.signals import first_token_bounds_s

later_s_min = 0.1  # first tokens that are less later than this are noise
late_quantile = 0.9


@dataclass(frozen=True, slots=True)
class GenerationHealth:
    """What a generation did since the rollout began, over all gateways."""

    attempts: int = 0
    failures: int = 0
    first_tokens: tuple[int, ...] = ()  # counts by `first_token_bounds_s`

    @property
    def failure_share(self) -> float:
        """Failed attempts of all."""
        return self.failures / self.attempts if self.attempts else 0.0

    @property
    def answered(self) -> int:
        """First tokens that came."""
        return sum(self.first_tokens)


def harm_of(policy: RolloutPolicy, new: GenerationHealth, old: GenerationHealth) -> str:
    """What the new generation does worse, in words and numbers; empty if nothing is proven."""
    if new.attempts >= policy.requests_min:
        excess = new.failure_share - old.failure_share
        if excess > policy.failure_share_max:
            return (
                f"{new.failure_share:.1%} of {new.attempts} attempts failed, "
                f"{old.failure_share:.1%} before"
            )
    if min(new.answered, old.answered) < policy.requests_min:
        return ""
    new_s = quantile(new.first_tokens, late_quantile)
    old_s = quantile(old.first_tokens, late_quantile)
    if new_s > policy.first_token_factor_max * old_s and new_s - old_s > later_s_min:
        return f"the 90th percentile of first tokens is {new_s:.2f} s, {old_s:.2f} s before"
    limit_s = policy.objective_first_token_s
    new_share, old_share = (
        share_within(new.first_tokens, limit_s),
        share_within(old.first_tokens, limit_s),
    )
    if old_share - new_share > policy.objective_drop_max:
        return f"{new_share:.1%} of first tokens come within {limit_s:g} s, {old_share:.1%} before"
    return ""


def quantile(counts: Sequence[int], share: float) -> float:
    """The value below which this share of the observations is, by interpolation in its bucket."""
    wanted = share * sum(counts)
    seen = 0.0
    lower_s = 0.0
    for count, upper_s in zip(counts, first_token_bounds_s, strict=False):
        if count and seen + count >= wanted:
            return lower_s + (upper_s - lower_s) * (wanted - seen) / count
        seen += count
        lower_s = upper_s
    return first_token_bounds_s[-1]


def share_within(
    counts: Sequence[int], limit_s: float, bounds_s: Sequence[float] = first_token_bounds_s
) -> float:
    """The share of observations up to a limit, by interpolation in its bucket; 1 without any."""
    total = sum(counts)
    if total == 0:
        return 1.0
    within = 0.0
    lower_s = 0.0
    for count, upper_s in zip(counts, bounds_s, strict=False):
        if limit_s < upper_s:
            within += count * max(0.0, limit_s - lower_s) / (upper_s - lower_s)
            break
        within += count
        lower_s = upper_s
    return within / total
