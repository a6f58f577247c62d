"""The few things that a reconciler can do, as values."""

from dataclasses import dataclass

from headrace.spec.deployments import Deployment, Replica, Template
from headrace.spec.models import ModelVersion


@dataclass(frozen=True, slots=True)
class ChangeDeployment:
    """Write how far a deployment's rollout is."""

    deployment: Deployment


@dataclass(frozen=True, slots=True)
class DescribeVersion:
    """Write what a model version's file says of itself."""

    version: ModelVersion


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """Write a new replica of this deployment's generation."""

    deployment: Deployment
    name: str


@dataclass(frozen=True, slots=True)
class ChangeReplica:
    """Write a replica's new state."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class LaunchReplica:
    """Start a process for a replica of its generation, and write that it is LOADING."""

    deployment: Deployment
    template: Template
    replica: Replica
    model_path: str


@dataclass(frozen=True, slots=True)
class StopReplica:
    """End a replica's process, whatever it does."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class DeleteReplica:
    """Forget a replica that has no process."""

    replica: Replica


Action = (
    ChangeDeployment
    | DescribeVersion
    | CreateReplica
    | ChangeReplica
    | LaunchReplica
    | StopReplica
    | DeleteReplica
)
