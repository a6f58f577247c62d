"""`headrace deployments`: models on engines, desired against observed."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer

from headrace.cli import output, rollouts
from headrace.cli.admin_client import path_of
from headrace.cli.engine_variables import EngineVariables, variables_of, variables_text
from headrace.cli.lora_options import Loras, lora_bodies
from headrace.cli.placing_options import (
    PlacementOptions,
    ResourceOptions,
    placement_body,
    resources_body,
)
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.public_prompt_options import PublicPromptsFile, public_prompt_bodies
from headrace.cli.scaling_options import (
    HedgingOptions,
    RolloutOptions,
    ScalingOptions,
    SplitOptions,
    autoscaling_body,
    hedging_body,
    rollout_body,
    split_body,
)
from headrace.cli.upstream_options import UpstreamOptions, upstream_body
from headrace.cli.views import format_moment

DeploymentArgument = Annotated[
    str, typer.Argument(metavar="DEPLOYMENT", help="Its name, model/name or id.")
]


class ScaleBounds(msgspec.Struct, frozen=True):
    """Between what it is scaled by its traffic."""

    min: int
    max: int


class DeploymentView(msgspec.Struct, frozen=True):
    """What is shown of a deployment."""

    id: str
    name: str
    model: str
    version: str
    engine: str
    replicas: int
    ready_replicas: int
    reasons: list[str]
    threads: int | None
    engine_arguments: list[str]
    environment: dict[str, str]
    loras: dict[str, str]
    upstream: dict[str, object] | None
    generation: int
    rollout_state: str
    rolled_back: str | None
    scale_reason: str | None
    hedging: dict[str, float | None] | None
    resources: dict[str, object]
    placement: dict[str, object]
    create_time: str
    autoscaling: ScaleBounds | None = None
    disaggregation: dict[str, int] | None = None
    public_prompts: list[msgspec.Raw] = []


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "deployments", "Models on engines: create, list, show, update, scale, rollout, delete.", app
    )
    platform_command(group, "create")(create)
    platform_command(group, "list")(list_all)
    platform_command(group, "show")(show)
    platform_command(group, "update")(update)
    platform_command(group, "scale")(scale)
    platform_command(group, "delete")(delete)
    rollouts.register(group)


def create(
    platform: Platform,
    model: Annotated[str, typer.Argument(help="A model's name or id.")],
    *,
    name: Annotated[str | None, typer.Option(help="Default: the model's name.")] = None,
    version: Annotated[
        str | None, typer.Option(help="A version's name or id; default: the active one.")
    ] = None,
    engine: Annotated[str, typer.Option(help="The engine's name.")] = "headrace",
    replicas: Annotated[int, typer.Option(help="How many replicas.")] = 1,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads a replica; default: an equal share.")
    ] = None,
    engine_arguments: Annotated[
        list[str] | None, typer.Option("--engine-argument", help="Passed on; repeatable.")
    ] = None,
    env: EngineVariables = None,
    lora: Loras = None,
    public_prompts: PublicPromptsFile = None,
    upstream: UpstreamOptions,
    scaling: ScalingOptions,
    rollout: RolloutOptions,
    hedging: HedgingOptions,
    split: SplitOptions,
    resources: ResourceOptions,
    placement: PlacementOptions,
) -> None:
    """Ask for replicas of a model; the control plane starts them.

    With --address an engine that others run is used instead: a server of your own, or an API."""
    body = {
        "model": model,
        "name": name,
        "version": version,
        "engine": engine,
        "replicas": replicas,
        "threads": threads,
        "engine_arguments": engine_arguments,
        "environment": variables_of(env),
        "loras": lora_bodies(lora),
        "public_prompts": public_prompt_bodies(public_prompts) or [],
        "upstream": upstream_body(upstream),
        "autoscaling": autoscaling_body(scaling),
        "rollout": rollout_body(rollout),
        "hedging": hedging_body(hedging),
        "disaggregation": split_body(split),
        "resources": resources_body(resources, scaling.devices),
        "placement": placement_body(placement, scaling.priority),
    }
    platform.show(platform.client.send("POST", "/deployments", body), DeploymentView, _fields)


def list_all(
    platform: Platform,
    *,
    model: Annotated[str | None, typer.Option(help="Only this model's.")] = None,
) -> None:
    """List deployments."""
    platform.show_list(
        platform.client.list("/deployments", {"model": model}),
        DeploymentView,
        ("NAME", "ID", "MODEL", "ENGINE", ">READY", "WHY NOT"),
        lambda deployment: (
            deployment.name,
            deployment.id,
            f"{deployment.model}@{deployment.version}",
            deployment.engine,
            _ready(deployment),
            "; ".join(_notes(deployment)) or "-",
        ),
        empty="no deployments yet; create one with `headrace deployments create MODEL`",
    )


def show(platform: Platform, deployment: DeploymentArgument) -> None:
    """Show one deployment, and why it is not ready."""
    platform.show(platform.client.get(_path(deployment)), DeploymentView, _fields)


def update(
    platform: Platform,
    deployment: DeploymentArgument,
    *,
    version: Annotated[str | None, typer.Option(help="Another version of the model.")] = None,
    engine: Annotated[str | None, typer.Option(help="Another engine.")] = None,
    replicas: Annotated[int | None, typer.Option(help="How many, as `scale` sets it.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads a replica.")] = None,
    engine_arguments: Annotated[
        list[str] | None, typer.Option("--engine-argument", help="Replaces all; repeatable.")
    ] = None,
    env: EngineVariables = None,
    lora: Loras = None,
    no_loras: Annotated[bool, typer.Option("--no-loras", help="Load no LoRA adapter.")] = False,
    public_prompts: PublicPromptsFile = None,
    no_public_prompts: Annotated[
        bool, typer.Option("--no-public-prompts", help="Tenants share no prompts.")
    ] = False,
    upstream: UpstreamOptions,
    fixed: Annotated[bool, typer.Option("--fixed", help="Scale no more by traffic.")] = False,
    no_hedge: Annotated[
        bool, typer.Option("--no-hedge", help="Send no request to a second replica.")
    ] = False,
    no_split: Annotated[
        bool, typer.Option("--no-split", help="Who computes a prompt answers it.")
    ] = False,
    scaling: ScalingOptions,
    rollout: RolloutOptions,
    hedging: HedgingOptions,
    split: SplitOptions,
    resources: ResourceOptions,
    placement: PlacementOptions,
) -> None:
    """Change a deployment; a new look of its replicas is rolled out."""
    body = {
        "version": version,
        "engine": engine,
        "replicas": replicas,
        "threads": threads,
        "engine_arguments": engine_arguments,
        "environment": variables_of(env),
        "loras": lora_bodies(lora),
        "public_prompts": public_prompt_bodies(public_prompts),
        "upstream": upstream_body(upstream),
        "autoscaling": autoscaling_body(scaling),
        "rollout": rollout_body(rollout),
        "hedging": hedging_body(hedging),
        "disaggregation": split_body(split),
        "resources": resources_body(resources, scaling.devices),
        "placement": placement_body(placement, scaling.priority),
    }
    given: dict[str, object] = {name: value for name, value in body.items() if value is not None}
    if no_loras:
        given["loras"] = []
    if no_public_prompts:
        given["public_prompts"] = []
    if fixed:
        given["autoscaling"] = msgspec.Raw(b"null")
    if no_hedge:
        given["hedging"] = msgspec.Raw(b"null")
    if no_split:
        given["disaggregation"] = msgspec.Raw(b"null")
    answer = platform.client.send("PATCH", _path(deployment), given)
    platform.show(answer, DeploymentView, _fields)


def scale(
    platform: Platform,
    deployment: DeploymentArgument,
    replicas: Annotated[int, typer.Argument(metavar="REPLICAS", help="How many from now on.")],
) -> None:
    """Set how many replicas there should be."""
    answer = platform.client.send("PATCH", _path(deployment), {"replicas": replicas})
    platform.show(answer, DeploymentView, _fields)


def delete(platform: Platform, deployment: DeploymentArgument) -> None:
    """Delete a deployment; its replicas finish their work and stop."""
    platform.client.send("DELETE", _path(deployment))
    if platform.as_json:
        output.write_json({"deleted": deployment})
    else:
        output.note(f"deleted {deployment}; its replicas finish their work and stop")


def _path(deployment: str) -> str:
    return f"/deployments/{path_of(deployment, keep_slash=True)}"


def _fields(deployment: DeploymentView) -> list[tuple[str, str]]:
    fields = [
        ("name", deployment.name),
        ("id", deployment.id),
        ("model", f"{deployment.model}@{deployment.version}"),
        ("engine", " ".join([deployment.engine, *deployment.engine_arguments])),
        ("environment", variables_text(deployment.environment)),
        ("loras", ", ".join(deployment.loras) or "-"),
        *([("public", _public(deployment.public_prompts))] if deployment.public_prompts else []),
        *([("run by others", _words(deployment.upstream))] if deployment.upstream else []),
        ("ready", _ready(deployment)),
        ("threads", "an equal share" if deployment.threads is None else str(deployment.threads)),
        ("generation", f"{deployment.generation}, rollout {deployment.rollout_state}"),
        *([("rolled back", deployment.rolled_back)] if deployment.rolled_back else []),
        *([("scales", _scales(deployment.autoscaling))] if deployment.autoscaling else []),
        *([("scaled", deployment.scale_reason)] if deployment.scale_reason else []),
        *([("split", _split(deployment.disaggregation))] if deployment.disaggregation else []),
        *([("hedged", _hedging(deployment.hedging))] if deployment.hedging else []),
        *([("needs", _words(deployment.resources))] if deployment.resources else []),
        *([("placed", _words(deployment.placement))] if deployment.placement else []),
        ("created", format_moment(deployment.create_time)),
    ]
    return [*fields, *(("why not", reason) for reason in deployment.reasons)]


def _words(fields: Mapping[str, object]) -> str:
    """Fields in a line."""
    return ", ".join(
        name.removeprefix("is_").replace("_", " ") + ("" if value is True else f" {value}")
        for name, value in fields.items()
        if value is not None and value is not False
    )


def _notes(deployment: DeploymentView) -> list[str]:
    """Why it is not as it was asked for."""
    taken_back = deployment.rolled_back
    return [*deployment.reasons, *([f"rolled back, {taken_back}"] if taken_back else [])]


def _ready(deployment: DeploymentView) -> str:
    return f"{deployment.ready_replicas}/{deployment.replicas}"


def _public(prompts: Sequence[msgspec.Raw]) -> str:
    return f"{len(prompts)} prompts that tenants share"


def _scales(bounds: ScaleBounds) -> str:
    return f"{bounds.min} to {bounds.max} replicas by traffic; `headrace explain scaling` says why"


def _split(policy: Mapping[str, int]) -> str:
    return (
        f"{policy['prefill']} compute prompts of over {policy['threshold_tokens']:,} tokens, "
        f"{policy['decode']} answer"
    )


def _hedging(hedging: Mapping[str, float | None]) -> str:
    """When a second replica is asked, in words."""
    quantile = hedging.get("first_output_quantile")
    later = f", and not before quantile {quantile:g} of first outputs" if quantile else ""
    return f"after {hedging['after_s']:g} s{later}"
