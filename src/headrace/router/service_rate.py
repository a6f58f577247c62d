"""How fast the endpoints of one deployment compute prompts, learnt from their first tokens.

Each first token says that its fresh tokens were computed since the endpoint's last one, or since
the request was sent, whichever is later. Sums of both fade, so that the newest `memory_tokens`
count most. What several requests of one step share is counted once: the first of them takes the
time and the others add their tokens.
"""

tokens_per_s_prior = 2000.0  # until something was measured; sglang's router assumes the same
memory_tokens = 200_000.0  # of fresh tokens: about a minute of one busy device
fresh_tokens_min = 64  # shorter prompts measure latency, not speed


class ServiceRate:
    """The learnt seconds a prompt token costs; shared by a deployment's endpoints."""

    __slots__ = ("_seconds", "_tokens", "seconds_per_token")

    def __init__(self, tokens_per_s: float = tokens_per_s_prior) -> None:
        assert tokens_per_s > 0
        self.seconds_per_token = 1.0 / tokens_per_s
        self._tokens = memory_tokens / 100  # the prior weighs a hundredth of what is remembered
        self._seconds = self._tokens / tokens_per_s

    def observe(self, fresh_tokens: int, seconds: float) -> None:
        """So many tokens were computed in this time."""
        if fresh_tokens < fresh_tokens_min or seconds < 0:
            return
        fade = 1.0 - fresh_tokens / memory_tokens if fresh_tokens < memory_tokens else 0.0
        self._tokens = known_tokens = self._tokens * fade + fresh_tokens
        self._seconds = known_s = self._seconds * fade + seconds
        if known_s > 0:
            self.seconds_per_token = known_s / known_tokens
