"""`headrace deployments rollout`: how far one is; pause it, let it go on, go back."""

from typing import Annotated

import msgspec
import typer

from headrace.cli.admin_client import path_of
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import format_moment

DeploymentArgument = Annotated[
    str, typer.Argument(metavar="DEPLOYMENT", help="Its name, model/name or id.")
]


class GenerationView(msgspec.Struct, frozen=True):
    """The replicas of one generation."""

    generation: int
    version: str
    replicas: int
    active: int


class RolloutView(msgspec.Struct, frozen=True):
    """What is shown of a rollout."""

    deployment: str
    strategy: str
    state: str
    step: int | None
    weight: int | None
    generations: list[GenerationView]
    last_generation: int | None
    last_succeeded: bool | None
    last_reason: str | None
    last_time: str | None


def register(parent: typer.Typer) -> None:
    """Add the group below `deployments`."""
    group = platform_group("rollout", "Rollouts: status, pause, resume, undo.", parent)
    platform_command(group, "status")(status)
    platform_command(group, "pause")(pause)
    platform_command(group, "resume")(resume)
    platform_command(group, "undo")(undo)


def status(platform: Platform, deployment: DeploymentArgument) -> None:
    """Show how far a rollout is, or how the last one ended."""
    platform.show(platform.client.get(_path(deployment)), RolloutView, _fields)


def pause(platform: Platform, deployment: DeploymentArgument) -> None:
    """Stop a rollout where it is; both generations go on serving."""
    _act(platform, deployment, "pause")


def resume(platform: Platform, deployment: DeploymentArgument) -> None:
    """Let a paused rollout go on."""
    _act(platform, deployment, "resume")


def undo(platform: Platform, deployment: DeploymentArgument) -> None:
    """Go back to the generation before, also after a rollout has ended."""
    _act(platform, deployment, "undo")


def _act(platform: Platform, deployment: str, action: str) -> None:
    answer = platform.client.send("POST", _path(deployment), {"action": action})
    platform.show(answer, RolloutView, _fields)


def _path(deployment: str) -> str:
    return f"/rollouts/{path_of(deployment, keep_slash=True)}"


def _fields(rollout: RolloutView) -> list[tuple[str, str]]:
    fields = [
        ("deployment", rollout.deployment),
        ("state", f"{rollout.state} ({rollout.strategy})"),
    ]
    if rollout.step is not None and rollout.strategy != "rolling":
        weight = "" if rollout.weight is None else f", {rollout.weight}% of the requests"
        fields.append(("step", f"{rollout.step + 1}{weight}"))
    fields += [
        (
            f"generation {generation.generation}",
            f"{generation.version or '-'}: {generation.active} of {generation.replicas} serve",
        )
        for generation in rollout.generations
    ]
    if rollout.last_time is not None:
        word = "succeeded" if rollout.last_succeeded else "was rolled back"
        fields.append(
            (
                "last",
                f"generation {rollout.last_generation} {word} "
                f"{format_moment(rollout.last_time)}: {rollout.last_reason}",
            )
        )
    return fields
