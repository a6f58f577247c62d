"""What a gateway tells the control plane of its traffic: counts that only grow, and the present.

The control plane asks every gateway and works with differences, so a lost or repeated answer loses
nothing, and a gateway that restarts, with another `gateway_id`, starts from zero.
"""

import msgspec

first_token_bounds_s = (
    0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip

inter_token_bounds_s = (
    0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
)  # fmt: skip


class GenerationSignals(msgspec.Struct, frozen=True, kw_only=True):
    """What one generation of a deployment did for this gateway."""

    deployment_id: str
    generation: int
    attempts_total: int = 0  # requests sent to its replicas
    failures_total: int = 0  # of them, those that a replica refused, broke or did not answer
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    completion_tokens_total: int = 0
    first_tokens: tuple[int, ...] = ()  # counts by `first_token_bounds_s`, the last beyond them
    inter_tokens: tuple[int, ...] = ()  # streams by their mean time between tokens, likewise
    in_flight_requests: int = 0
    queued_tokens: int = 0  # prompts sent and not computed
    kv_share: float = 0.0  # the mean of its replicas, by estimate
    replicas: int = 0  # that the gateway may use


class ModelSignals(msgspec.Struct, frozen=True, kw_only=True):
    """What arrived for one model."""

    model: str
    arrived_requests_total: int = 0
    arrived_tokens_total: int = 0  # prompts, and answers by estimate
    waiting_requests: int = 0
    waiting_tokens: int = 0
    judged_requests_total: int = 0  # that ended other than by their caller's doing
    good_requests_total: int = 0  # of them, those within the model's objectives


class GatewaySignals(msgspec.Struct, frozen=True, kw_only=True):
    """All that one gateway has to tell."""

    gateway_id: str
    success_age_s: float | None = None  # since something last came back to somebody
    generations: tuple[GenerationSignals, ...] = ()
    models: tuple[ModelSignals, ...] = ()
