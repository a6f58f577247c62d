"""Routes for rollouts: how far one is, and to pause it, go on, or go back."""

import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from headrace.base.errors import Conflict
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.references import resolve
from headrace.control.admin.values import RequestBody, moment
from headrace.control.model_targets import follow_version
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.models import Model, ModelVersion

router = APIRouter()

update_attempts_max = 4


class RolloutAction(StrEnum):
    """What can be done with a rollout."""

    PAUSE = "pause"
    RESUME = "resume"
    UNDO = "undo"  # go back to the generation before, also after the end


class RolloutChange(RequestBody):
    """One of the above."""

    action: Annotated[RolloutAction, Field()]


class GenerationView(BaseModel):
    """The replicas of one generation."""

    generation: int
    version: str
    replicas: int
    active: int


class RolloutView(BaseModel):
    """How far a deployment's rollout is, or how the last one ended."""

    deployment: str
    strategy: str
    state: str  # progressing, paused, rolling back, idle
    step: int | None  # of a canary's or blue-green rollout
    weight: int | None  # percent of the requests for the new generation
    generations: list[GenerationView]
    last_generation: int | None
    last_succeeded: bool | None
    last_reason: str | None
    last_time: datetime.datetime | None


@router.get("/rollouts/{deployment:path}")
def show_rollout(deployment: str, context: Context) -> RolloutView:
    """Show how far the rollout of a deployment is."""
    return rollout_view(context, resolve(context.database.store, Deployment, deployment, Model))


@router.post("/rollouts/{deployment:path}")
def change_rollout(deployment: str, body: RolloutChange, context: Context) -> RolloutView:
    """Pause a rollout, let it go on, or go back to the generation before."""
    store = context.database.store
    for attempt in range(update_attempts_max):
        found = resolve(store, Deployment, deployment, Model)
        wanted = acted(found, body.action)
        try:
            with context.database.transaction():
                follow_version(store, found, wanted)
                changed = store.update(wanted)
        except Conflict:
            if attempt == update_attempts_max - 1:
                raise
        else:
            return rollout_view(context, changed)
    raise AssertionError("the last attempt returns or raises")


def acted(deployment: Deployment, action: RolloutAction) -> Deployment:
    """The deployment after an action; Conflict if there is nothing to act on."""
    if action is RolloutAction.UNDO:
        if deployment.former is None:
            raise Conflict(f"the deployment {deployment.name!r} has no generation before this one")
        return deployment.rolled_back()
    if deployment.progress is None:
        raise Conflict(f"no rollout of {deployment.name!r} is under way")
    progress = msgspec.structs.replace(deployment.progress, is_paused=action is RolloutAction.PAUSE)
    return msgspec.structs.replace(deployment, progress=progress)


def rollout_view(context: AdminContext, deployment: Deployment) -> RolloutView:
    """Deployment and replicas as a rollout."""
    store = context.database.store
    progress, verdict = deployment.progress, deployment.verdict
    replicas = store.list(Replica, deployment.id)
    versions = {version.id: version.name for version in store.list(ModelVersion)}
    numbers = {replica.generation for replica in replicas} | {deployment.generation}
    generations = []
    for number in sorted(numbers):
        own = [replica for replica in replicas if replica.generation == number]
        template = deployment.template_of(number)
        generations.append(
            GenerationView(
                generation=number,
                version=versions.get(template.model_version_id, "") if template else "",
                replicas=len(own),
                active=sum(replica.state is ReplicaState.ACTIVE for replica in own),
            )
        )
    return RolloutView(
        deployment=deployment.name,
        strategy=deployment.rollout.strategy.value,
        state=state_of(deployment),
        step=None if progress is None else progress.step,
        weight=None if progress is None else progress.weight,
        generations=generations,
        last_generation=None if verdict is None else verdict.generation,
        last_succeeded=None if verdict is None else verdict.succeeded,
        last_reason=None if verdict is None else verdict.reason,
        last_time=None if verdict is None else moment(verdict.time),
    )


def state_of(deployment: Deployment) -> str:
    """One word for a rollout."""
    progress = deployment.progress
    if progress is None:
        return "idle"
    if progress.is_rollback:
        return "rolling back"
    return "paused" if progress.is_paused else "progressing"
