"""`headrace explain`: why a request went where it went, why replicas are where they are."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from headrace.cli import output
from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.router.decision_log import Decision


class Decisions(msgspec.Struct, frozen=True):
    """All attempts of one request."""

    decisions: list[Decision]


class ReplicaName(msgspec.Struct, frozen=True):
    """What people call a replica."""

    id: str
    name: str


class ReplicaNames(msgspec.Struct, frozen=True):
    """All that there are now."""

    items: list[ReplicaName]


class SampleView(msgspec.Struct, frozen=True):
    """The traffic that was seen."""

    tokens_per_s: float
    waiting_requests: int
    waiting_tokens: int
    in_flight_requests: int
    kv_share: float
    active_replicas: int


class ProposalView(msgspec.Struct, frozen=True):
    """What it asks for."""

    replicas: int
    reason: str
    needs: Mapping[str, float]
    forecast_tokens_per_s: float
    capacity_tokens_per_s: float | None
    lead_s: float
    min: int
    max: int


class LookView(msgspec.Struct, frozen=True):
    """One look of the autoscaler."""

    deployment: str
    model: str
    sample: SampleView
    proposal: ProposalView
    granted: int
    before: int


class PlaceView(msgspec.Struct, frozen=True):
    """Where one replica is."""

    replica: str
    node: str
    devices: list[str]
    state: str
    detail: str


class TermView(msgspec.Struct, frozen=True):
    """A part of a score."""

    name: str
    value: float


class VerdictView(msgspec.Struct, frozen=True):
    """One node, for one more replica."""

    node: str
    reason: str
    devices: list[str]
    score: float
    terms: list[TermView]


class PlacementView(msgspec.Struct, frozen=True):
    """Where a deployment's replicas are, and where one more would go."""

    replicas: list[PlaceView]
    nodes: list[VerdictView]
    frozen_reason: str | None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group("explain", "Why: route, placement, scaling.", app)
    platform_command(group, "route")(route)
    platform_command(group, "placement")(placement)
    platform_command(group, "scaling")(scaling)


def route(
    platform: Platform,
    request_id: Annotated[str, typer.Argument(help="The X-Request-Id of an answer.")],
) -> None:
    """Show which replicas a request could go to, what each would have cost, and which it was."""
    answer = platform.client.get(f"/explain/route/{path_of(request_id)}")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    listed = msgspec.json.decode(platform.client.list("/replicas"), type=ReplicaNames)
    names = {replica.id: replica.name for replica in listed.items}
    for decision in msgspec.json.decode(answer, type=Decisions).decisions:
        output.write_fields(_decision_fields(decision, names))
        output.write_table(
            ("", "REPLICA", ">COST", "TERMS", ">PREFIX", ">IN FLIGHT", ">KV"),
            [
                (
                    "*" if candidate.is_chosen else "",
                    names.get(candidate.endpoint_id, candidate.endpoint_id),
                    f"{candidate.cost or 0.0:.4g}",
                    ", ".join(
                        f"{name} {value or 0.0:.4g}" for name, value in candidate.terms.items()
                    ),
                    output.format_count(candidate.matched_tokens),
                    str(candidate.in_flight_requests),
                    f"{candidate.kv_share:.0%}",
                )
                for candidate in decision.candidates
            ],
            empty="no replica could take it",
        )


def placement(
    platform: Platform,
    deployment: Annotated[str, typer.Argument(help="Its name, model/name or id.")],
) -> None:
    """Show where replicas are, and for every node why one more could go there or not."""
    answer = platform.client.get(f"/explain/placement/{path_of(deployment, keep_slash=True)}")
    if platform.as_json:
        output.write_json(msgspec.Raw(answer))
        return
    found = msgspec.json.decode(answer, type=PlacementView)
    output.write_table(
        ("REPLICA", "NODE", "DEVICES", "STATE", "DETAIL"),
        [
            (place.replica, place.node or "-", ", ".join(place.devices), place.state, place.detail)
            for place in found.replicas
        ],
        empty="it has no replica",
    )
    output.write_table(
        ("NODE", "ONE MORE", ">SCORE", "TERMS"),
        [
            (
                verdict.node,
                verdict.reason or f"could go to {', '.join(verdict.devices)}",
                f"{verdict.score or 0.0:.3g}" if not verdict.reason else "-",
                ", ".join(f"{term.name} {term.value or 0.0:.3g}" for term in verdict.terms),
            )
            for verdict in found.nodes
        ],
        empty="there is no node; add one with `headrace nodes add`",
    )
    if found.frozen_reason:
        output.note(f"frozen: {found.frozen_reason}")


def scaling(
    platform: Platform,
    deployment: Annotated[str, typer.Argument(help="Its name, model/name or id.")],
) -> None:
    """Show what the autoscaler saw last, what each target asks for, and what was granted."""
    answer = platform.client.get(f"/explain/scaling/{path_of(deployment, keep_slash=True)}")
    platform.show(answer, LookView, _look_fields)


def _decision_fields(decision: Decision, names: Mapping[str, str]) -> list[tuple[str, str]]:
    chosen = names.get(decision.chosen_id, decision.chosen_id)  # its id, once it is gone
    leg = f", {decision.leg} leg" if decision.leg else ""
    left_out = ", ".join(f"{count} {why}" for why, count in decision.filtered.items())
    return [
        ("request", f"{decision.request_id}, attempt {decision.attempt}{leg}"),
        ("prompt", f"about {output.format_count(decision.prompt_tokens)} tokens"),
        ("replicas", f"{decision.endpoint_count}, nearness: {decision.tier}"),
        ("left out", left_out or "none"),
        ("chosen", f"{chosen} by {decision.reason} ({decision.policy})"),
    ]


def _look_fields(look: LookView) -> list[tuple[str, str]]:
    sample, proposal = look.sample, look.proposal
    capacity = proposal.capacity_tokens_per_s
    return [
        ("deployment", f"{look.deployment} of {look.model}"),
        ("arrives", f"{sample.tokens_per_s:,.0f} tokens/s"),
        (
            "forecast",
            f"{proposal.forecast_tokens_per_s:,.0f} tokens/s in {proposal.lead_s:.0f} s, "
            "when a replica started now would serve",
        ),
        ("a replica does", "not known" if capacity is None else f"{capacity:,.0f} tokens/s"),
        ("waits", f"{sample.waiting_requests} requests, {sample.waiting_tokens:,} tokens"),
        ("in flight", f"{sample.in_flight_requests} requests, KV {sample.kv_share:.0%} in use"),
        *((f"by {name}", f"{need:.2f} replicas") for name, need in proposal.needs.items()),
        ("wanted", f"{proposal.replicas} ({proposal.reason}), {proposal.min} to {proposal.max}"),
        ("granted", f"{look.granted}, was {look.before}"),
    ]
