"""Every routing policy by its name, for settings, benchmarks and simulations."""

from collections.abc import Mapping

from headrace.router.cost_policy import least_harm, least_work
from headrace.router.policy import (
    LeastRequests,
    LeastTokens,
    PolicyFactory,
    PrefixAffinity,
    RoundRobin,
    TwoChoices,
)

default_policy = "least-harm"
policies: Mapping[str, PolicyFactory] = {
    "round-robin": lambda _: RoundRobin(),
    "least-requests": lambda _: LeastRequests(),
    "two-choices": TwoChoices,
    "least-tokens": lambda _: LeastTokens(),
    "prefix-affinity": lambda _: PrefixAffinity(),
    "least-work": lambda _: least_work(),
    "least-harm": lambda _: least_harm(),
}
