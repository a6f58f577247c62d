"""What replicas run on: this machine's processes, a Kubernetes namespace, or a Ray cluster.

Only the chosen launcher's module is loaded, because the others need extras.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError
from headrace.cli.platform_files import PlatformFiles, local_launcher
from headrace.cli.settings import otlp_endpoint
from headrace.launchers.protocol import Launcher


class LauncherKind(StrEnum):
    """Where replicas run."""

    PROCESS = "process"
    KUBERNETES = "kubernetes"
    RAY = "ray"


LauncherName = Annotated[
    LauncherKind,
    typer.Option("--launcher", envvar="HEADRACE_LAUNCHER", help="What replicas run on."),
]
KubernetesNamespace = Annotated[
    str,
    typer.Option(envvar="HEADRACE_KUBERNETES_NAMESPACE", help="Where replicas go on Kubernetes."),
]
KubernetesImage = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_KUBERNETES_IMAGE",
        help="An image with headrace in it, for engines that name no image of their own.",
    ),
]
KubernetesModelClaim = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_KUBERNETES_MODEL_CLAIM",
        help="A volume claim that many nodes can mount; the control plane has it as its cache-dir.",
    ),
]
KubernetesModelHostPath = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_KUBERNETES_MODEL_HOST_PATH",
        help="Instead of a claim: a directory that every node has, such as a shared file system; "
        "the control plane has it as its cache-dir.",
    ),
]
KubernetesTopologyKey = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_KUBERNETES_TOPOLOGY_KEY",
        help="A label of nodes, such as a rack's: a replica over several nodes is where its value "
        "is the same, and alone there.",
    ),
]
KubernetesTolerate = Annotated[
    list[str] | None,
    typer.Option(
        "--kubernetes-tolerate",
        envvar="HEADRACE_KUBERNETES_TOLERATE",
        help="The key of a taint of nodes that are kept for engines; repeatable.",
    ),
]
KubernetesLoraClaim = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_KUBERNETES_LORA_CLAIM",
        help="A volume claim with LoRA adapters, which engines mount at /adapters.",
    ),
]
RayAddress = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_RAY_ADDRESS", help="The Ray cluster, as host:port; default: the local one."
    ),
]


@dataclass(frozen=True, slots=True)
class LauncherChoice:
    """What an operator said about launchers."""

    kind: LauncherKind = LauncherKind.PROCESS
    kubernetes_namespace: str = "headrace"
    kubernetes_image: str = ""
    kubernetes_model_claim: str = ""
    kubernetes_lora_claim: str = ""
    kubernetes_model_host_path: str = ""
    kubernetes_topology_key: str = ""
    kubernetes_tolerate: tuple[str, ...] = ()
    ray_address: str = "auto"


def open_launcher(
    choice: LauncherChoice, files: PlatformFiles, clock: Clock, model_path: str
) -> Launcher:
    """The chosen launcher, with the replicas that it runs already.

    `model_path` is where the control plane keeps model files: engines get the same path."""
    match choice.kind:
        case LauncherKind.PROCESS:
            return local_launcher(files, clock)
        case LauncherKind.KUBERNETES:
            return kubernetes_launcher(choice, clock, model_path)
        case LauncherKind.RAY:
            return ray_launcher(choice, clock)


def kubernetes_launcher(choice: LauncherChoice, clock: Clock, model_path: str) -> Launcher:
    """ConfigurationError if the image is not named, or there is no cluster."""
    from headrace.launchers.kubernetes.launcher import (  # noqa: PLC0415 -- loaded if chosen
        KubernetesLauncher,
        KubernetesSite,
    )

    if not choice.kubernetes_image:
        raise ConfigurationError(
            "replicas on Kubernetes need an image that has headrace: --kubernetes-image IMAGE"
        )
    endpoint = os.environ.get(otlp_endpoint.variable)  # as processes would inherit it
    site = KubernetesSite(
        namespace=choice.kubernetes_namespace,
        image=choice.kubernetes_image,
        model_claim=choice.kubernetes_model_claim,
        model_host_path=choice.kubernetes_model_host_path,
        model_path=model_path,
        lora_claim=choice.kubernetes_lora_claim,
        topology_key=choice.kubernetes_topology_key,
        tolerated_taints=choice.kubernetes_tolerate,
        environment={} if endpoint is None else {otlp_endpoint.variable: endpoint},
    )
    return KubernetesLauncher(site, clock)


def ray_launcher(choice: LauncherChoice, clock: Clock) -> Launcher:
    """ConfigurationError if Ray is not installed, or no cluster answers."""
    from headrace.launchers.ray_launcher import RayLauncher  # noqa: PLC0415 -- loaded if chosen

    return RayLauncher(choice.ray_address, clock)
