"""What a load test asks: prompts of a wanted length, the same for the same seed.

Every prompt has its own words, so that a prefix cache helps only with the prefix that is shared on
purpose. Words are short and common: one token each in most vocabularies. A length in tokens is met
by the ratio of tokens to words that the server itself counted (see `client.Calibration`).
"""

import random
from dataclasses import dataclass

import msgspec

words_text = """
the of and to in is you that it he was for on are as with his they at be this have from or one
had by word but not what all were we when your can said there use an each which she do how their
if will up other about out many then them these so some her would make like him into time has
look two more write go see number no way could people my than first water been call who oil its
now find long down day did get come made may part over new sound take only little work know
place year live me back give most very after thing our just name good sentence man think say
great where help through much before line right too mean old any same tell boy follow came want
show also around form three small set put end does another well large must big even such because
turn here why ask went men read need land different home us move try kind hand picture again
change off play spell air away animal house point page letter mother answer found study still
learn should world high every near add food between own below country plant last school father
keep tree never start city earth eye light thought head under story
"""
words = words_text.split()

prompt_words_max = 1_000_000
output_tokens_max = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of every request of a test."""

    model: str
    prompt_words: int  # in all, the shared prefix included
    shared_prefix_words: int
    output_tokens: int
    chat: bool = True  # /v1/chat/completions, or /v1/completions
    ignore_eos: bool = False
    seed: int = 0

    @property
    def path(self) -> str:
        """The route that is asked."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, stream: str, index: int) -> bytes:
        """Request number `index` of a `stream` of requests, as JSON.

        The same arguments give the same bytes; other ones give other prompts."""
        own_words = self.prompt_words - self.shared_prefix_words
        text = " ".join(
            [
                *_draw(f"{self.seed}/shared", self.shared_prefix_words),
                *_draw(f"{self.seed}/{stream}/{index}", own_words),
            ]
        )
        asked: dict[str, object] = {
            "model": self.model,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.chat:
            asked["messages"] = [{"role": "user", "content": text}]
        else:
            asked["prompt"] = text
        if self.ignore_eos:
            asked["ignore_eos"] = True
        return msgspec.json.encode(asked)


def _draw(seed: str, count: int) -> list[str]:
    """`count` words, the same for the same seed."""
    # Reproducible prompts, not secrets.
    return random.Random(seed).choices(words, k=count)  # noqa: S311 -- no secret


def arrival_times_s(rate_per_s: float, seed: int, count: int) -> list[float]:
    """When each of `count` requests of a Poisson process starts, from 0."""
    rng = random.Random(f"{seed}/arrivals")  # noqa: S311 -- no secret
    times_s = []
    now_s = 0.0
    for _ in range(count):
        now_s += rng.expovariate(rate_per_s)
        times_s.append(now_s)
    return times_s
