"""The options of scaling, rollouts, hedging and splits, once for `create` and `update`."""

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ScalingOptions:
    """Bounds and targets; without `--max` the number of replicas is fixed."""

    min: Annotated[
        int | None, typer.Option(min=0, help="Replicas at least; 0: none when idle.")
    ] = None
    max: Annotated[int | None, typer.Option(min=0, help="Replicas at most; turns scaling on.")] = (
        None
    )
    target_tokens_per_second: Annotated[
        float | None, typer.Option(help="Work a replica can do; default: learnt.")
    ] = None
    target_requests: Annotated[
        float | None, typer.Option(help="Requests in flight for each replica.")
    ] = None
    target_kv: Annotated[float | None, typer.Option(help="Share of KV in use, 0 to 1.")] = None
    target_ttft: Annotated[
        float | None, typer.Option(help="Seconds in which first tokens should come.")
    ] = None
    target_inter_token: Annotated[
        float | None, typer.Option(help="Seconds between two tokens, an answer's mean.")
    ] = None
    idle: Annotated[
        float | None, typer.Option(help="Seconds without a request before going to zero.")
    ] = None
    down_after: Annotated[
        float | None, typer.Option(help="Seconds of less need before going down.")
    ] = None
    priority: Annotated[
        int | None, typer.Option(min=0, help="Higher gets devices first, and may end lower ones.")
    ] = None
    devices: Annotated[int | None, typer.Option(min=0, help="Accelerators of one replica.")] = None
    schedule: Annotated[
        list[str] | None,
        typer.Option(
            help="Other bounds at times of the day (UTC), as 'mon-fri 08:00-18:00=2-8', or without "
            "the days; repeatable."
        ),
    ] = None


weekday_names = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
schedule_pattern = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))? )?"
    r"(?P<begins>\d\d:\d\d)-(?P<ends>\d\d:\d\d)=(?P<min>\d+)-(?P<max>\d+)"
)


def scheduled_bounds(text: str) -> dict[str, object]:
    """Bounds at a time of the day; ConfigurationError if they are not written so."""
    found = schedule_pattern.fullmatch(text.strip().lower())
    days = [] if found is None else [day for day in (found["first"], found["last"]) if day]
    if found is None or not set(days) <= set(weekday_names):
        raise ConfigurationError(
            f"--schedule {text!r}: write it as 'mon-fri 08:00-18:00=2-8', or '22:00-06:00=0-1' for "
            "every day"
        )
    bounds: dict[str, object] = {"begins": found["begins"], "ends": found["ends"]}
    bounds |= {"min": int(found["min"]), "max": int(found["max"])}
    if days:
        first, last = weekday_names.index(days[0]), weekday_names.index(days[-1])
        bounds["weekdays"] = [(first + day) % 7 for day in range((last - first) % 7 + 1)]
    return bounds


def autoscaling_body(options: ScalingOptions) -> dict[str, object] | None:
    """The policy as the API takes it; None if no option was given."""
    values: dict[str, object | None] = {
        "min": options.min,
        "max": options.max,
        "target_tokens_per_s": options.target_tokens_per_second,
        "target_requests": options.target_requests,
        "target_kv_share": options.target_kv,
        "target_first_token_s": options.target_ttft,
        "target_inter_token_s": options.target_inter_token,
        "idle_s": options.idle,
        "down_after_s": options.down_after,
        "priority": options.priority,
        "devices": options.devices,
        "schedule": [scheduled_bounds(text) for text in options.schedule or ()] or None,
    }
    given = {name: value for name, value in values.items() if value is not None}
    if not given.keys() - {"priority", "devices"}:  # those are of placement as well
        return None
    if "max" not in given:
        raise ConfigurationError("--max: say how many replicas there may be at most")
    return {"min": min(1, int(options.max or 0)), **given}


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How changes are rolled out."""

    strategy: Annotated[
        str | None, typer.Option(help="rolling, blue-green or canary; default: rolling.")
    ] = None
    surge: Annotated[
        int | None, typer.Option(min=1, help="Replicas above the wanted number meanwhile.")
    ] = None
    canary_step: Annotated[
        list[str] | None,
        typer.Option(help="WEIGHT:SECONDS, percent of the requests and how long; repeatable."),
    ] = None
    no_rollback: Annotated[
        bool, typer.Option("--no-rollback", help="Keep the new generation whatever it does.")
    ] = False


def rollout_body(options: RolloutOptions) -> dict[str, object] | None:
    """The policy as the API takes it; None if no option was given."""
    body: dict[str, object] = {}
    if options.strategy is not None:
        body["strategy"] = options.strategy
    if options.surge is not None:
        body["surge"] = options.surge
    if options.canary_step:
        body["steps"] = [step_of(text) for text in options.canary_step]
        body.setdefault("strategy", "canary")
    if options.no_rollback:
        body["rolls_back"] = False
    return body or None


@dataclass(frozen=True, slots=True)
class HedgingOptions:
    """When a second replica gets a request that the first is slow to answer."""

    hedge_after: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds without a first byte; turns hedging on."),
    ] = None
    hedge_quantile: Annotated[
        float | None,
        typer.Option(help="And not before this quantile of the deployment's first outputs."),
    ] = None


def hedging_body(options: HedgingOptions) -> dict[str, object] | None:
    """The policy as the API takes it; None if no option was given."""
    body = {"after_s": options.hedge_after, "first_output_quantile": options.hedge_quantile}
    return {name: value for name, value in body.items() if value is not None} or None


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Which replicas compute prompts for the others."""

    prefill_replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Replicas that compute prompts for others; with the next one."),
    ] = None
    decode_replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas that answer; both in place of --replicas.")
    ] = None
    split_threshold: Annotated[
        int | None, typer.Option(min=1, help="Prompts with no more new tokens are not split.")
    ] = None


def split_body(options: SplitOptions) -> dict[str, object] | None:
    """The policy as the API takes it; None if no option was given."""
    body = {
        "prefill": options.prefill_replicas,
        "decode": options.decode_replicas,
        "threshold_tokens": options.split_threshold,
    }
    return {name: value for name, value in body.items() if value is not None} or None


def step_of(text: str) -> dict[str, object]:
    """One canary step from `25:60`; ConfigurationError if it is not one."""
    weight, _, pause = text.partition(":")
    try:
        return {"weight": int(weight), "pause_s": float(pause or 60.0)}
    except ValueError:
        raise ConfigurationError(
            f"--canary-step {text!r}: write WEIGHT:SECONDS, as in 25:60"
        ) from None
