"""The gateway's options of routing: by what it chooses, and where it is."""

from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.router.policies import policies


def check_policy(name: str) -> str:
    """The name; ConfigurationError lists those there are if it is none."""
    if name not in policies:
        raise ConfigurationError(
            f"--routing-policy {name!r} is unknown; there are {', '.join(policies)}"
        )
    return name


RoutingPolicyName = Annotated[
    str,
    typer.Option(
        "--routing-policy",
        envvar="HEADRACE_ROUTING_POLICY",
        help="How replicas are chosen; `least-harm` knows prefixes and load.",
        callback=check_policy,
    ),
]
RegionName = Annotated[
    str,
    typer.Option("--region", envvar="HEADRACE_REGION", help="Replicas there are preferred."),
]
ZoneName = Annotated[
    str, typer.Option("--zone", envvar="HEADRACE_ZONE", help="Preferred within the region.")
]
KvEventsOffset = Annotated[
    int,
    typer.Option(
        "--kv-events-offset",
        envvar="HEADRACE_KV_EVENTS_OFFSET",
        min=0,
        max=60_000,
        help="vLLM and SGLang publish KV events at their port plus this, by ZeroMQ; 0: not at all.",
    ),
]
