"""Reads the world of one deployment: the store, the launcher, and the engines themselves."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from headrace.adapters.protocol import EngineAdapter, EngineLoad, Readiness, ReadinessState
from headrace.base.clock import Clock
from headrace.base.errors import NotFound
from headrace.control.generation_watch import GenerationWatch
from headrace.control.model_files import ModelFiles
from headrace.control.probe import Probe, Question, question_of
from headrace.control.rollout_health import GenerationHealth
from headrace.control.silence import SilenceWatch
from headrace.control.world import ModelFileState, ReplicaObservation, World
from headrace.launchers.protocol import Launch, Launcher, LaunchState
from headrace.spec.deployments import Deployment, Replica, ReplicaState, Template
from headrace.spec.models import Model, ModelVersion
from headrace.storage.store import Store

not_begun = (ReplicaState.CREATING, ReplicaState.FAILED)

FilePair = tuple[ModelFileState, ModelFileState]  # of the present and the former generation


class HealthSource(Protocol):
    """Who knows how the generations of a deployment do."""

    def since_change(self, deployment_id: str, generation: int) -> Mapping[int, GenerationHealth]:
        """What each generation did since this one came, over all gateways."""
        ...


class NodeSight(Protocol):
    """What is known of nodes."""

    @property
    def frozen_reason(self) -> str:
        """Why nothing is moved from silent nodes; empty: it is."""
        ...

    def file_state(self, replica: Replica, version: ModelVersion) -> ModelFileState | None:
        """A model's file where a replica has its place; None where that is this machine."""
        ...


class Observer:
    """The eyes of the reconciler; looks and changes nothing."""

    def __init__(
        self,
        *,
        store: Store,
        launcher: Launcher,
        probe: Probe,
        model_files: ModelFiles,
        adapters: Mapping[str, EngineAdapter],
        clock: Clock,
        health: HealthSource | None = None,
        nodes: NodeSight | None = None,
    ) -> None:
        self._nodes = nodes  # None: the launcher chooses where replicas run
        self._health = health  # None: no gateway is asked
        self._silence = SilenceWatch()
        self._generation = GenerationWatch()
        self._store = store
        self._launcher = launcher
        self._probe = probe
        self._model_files = model_files
        self._adapters = adapters
        self._clock = clock

    def names(self) -> set[str]:
        """The id of every deployment that exists or still has replicas."""
        deployments = {deployment.id for deployment in self._store.list(Deployment)}
        replicas = self._store.list(Replica)
        serving = {r.id for r in replicas if r.state is ReplicaState.ACTIVE}
        self._silence.keep_only(serving)
        self._generation.keep_only(serving)
        return deployments | {replica.parent_id for replica in replicas}

    def orphans(self) -> list[str]:
        """Launches whose replica is not in the store: nobody will ever ask for them."""
        launches = self._launcher.list()  # before the store: a replica is written before it starts
        known = {replica.id for replica in self._store.list(Replica)}
        return [launch.launch_id for launch in launches if launch.name not in known]

    async def world(self, deployment_id: str) -> World:
        """One deployment and everything about it, as it is now."""
        deployment, replicas, launches, files = await asyncio.to_thread(self._read, deployment_id)
        questions = await asyncio.to_thread(self._questions, deployment, replicas)
        elsewhere = await asyncio.to_thread(self._files_on_nodes, deployment, replicas)
        seen = await asyncio.gather(
            *(
                self._observe(replica, launches.get(replica.id), questions[replica.id])
                for replica in replicas
            )
        )
        return World(
            now_s=self._clock.wall_s(),
            deployment=deployment,
            replicas=replicas,
            observations={replica.id: look for replica, look in zip(replicas, seen, strict=True)},
            model_file=files[0],
            is_frozen=self._silence.is_suspicious or self._nodes_are_frozen,
            former_model_file=files[1],
            health=self._health_of(deployment),
            files_on_nodes=elsewhere,
            has_nodes=self._nodes is not None,
        )

    @property
    def _nodes_are_frozen(self) -> bool:
        return self._nodes is not None and self._nodes.frozen_reason != ""

    def _files_on_nodes(
        self, deployment: Deployment | None, replicas: tuple[Replica, ...]
    ) -> dict[str, ModelFileState]:
        """Of replicas that have no process yet, by their id."""
        found: dict[str, ModelFileState] = {}
        if self._nodes is None or deployment is None:
            return found
        for replica in replicas:
            template = deployment.template_of(replica.generation)
            waits = replica.state in (ReplicaState.CREATING, ReplicaState.FAILED)
            if not replica.node_id or not waits or template is None:
                continue
            try:
                version = self._store.get(ModelVersion, template.model_version_id)
            except NotFound:
                continue
            state = self._nodes.file_state(replica, version)
            if state is not None:
                found[replica.id] = state
        return found

    def _questions(
        self, deployment: Deployment | None, replicas: tuple[Replica, ...]
    ) -> Mapping[str, Question | None]:
        """What each replica is asked before it serves, by what its model's version declares."""
        found: dict[int, Question | None] = {}
        for generation in {replica.generation for replica in replicas}:
            template = deployment and deployment.template_of(generation)
            if template is None:
                continue
            with suppress(NotFound):
                version = self._store.get(ModelVersion, template.model_version_id)
                found[generation] = question_of(version)
        return {each.id: found.get(each.generation, Question.TOKEN) for each in replicas}

    def _health_of(self, deployment: Deployment | None) -> Mapping[int, GenerationHealth]:
        if self._health is None or deployment is None or deployment.progress is None:
            return {}
        return self._health.since_change(deployment.id, deployment.generation)

    def _read(
        self, deployment_id: str
    ) -> tuple[Deployment | None, tuple[Replica, ...], dict[str, Launch], FilePair]:
        replicas = tuple(self._store.list(Replica, parent_id=deployment_id))
        launches = {launch.name: launch for launch in self._launcher.list()}
        try:
            deployment = self._store.get(Deployment, deployment_id)
        except NotFound:
            return None, replicas, launches, (ModelFileState(), ModelFileState())
        current = self._model_file(deployment, deployment.template)
        former = ModelFileState(detail="there is no former version")
        if deployment.progress is not None and deployment.former is not None:
            former = self._model_file(deployment, deployment.former)
        return deployment, replicas, launches, (current, former)

    def _model_file(self, deployment: Deployment, template: Template) -> ModelFileState:
        if deployment.replicas == 0:
            return ModelFileState(detail="no replica is wanted")
        try:
            version = self._store.get(ModelVersion, template.model_version_id)
            model = self._store.get(Model, version.parent_id)
        except NotFound as error:
            return ModelFileState(detail=error.message)
        if template.upstream is not None:  # there is no file; what counts is its name there
            return ModelFileState(path=version.upstream_name or model.name)
        state = self._model_files.state(version.source, version.sha256, version.files)
        return replace(state, version=version)

    async def _observe(
        self, replica: Replica, launch: Launch | None, question: Question | None
    ) -> ReplicaObservation:
        ended = end_of(replica, launch)
        if ended is not None:
            return ended
        adapter = self._adapters.get(replica.engine)
        if adapter is None or not replica.address:
            return ReplicaObservation(alive=True)
        if replica.state is ReplicaState.DRAINING:
            load = await self._probe.load(adapter, replica)
            return ReplicaObservation(alive=True, running_requests=requests_in(load))
        readiness = await self._probe.readiness(adapter, replica)
        writes_text = question is Question.TOKEN
        if replica.state is ReplicaState.ACTIVE:
            self._silence.note(replica.id, is_silent=readiness is None)
            if readiness is not None and writes_text and self._is_hung(adapter, replica):
                hung = Readiness(ReadinessState.HUNG, "it answers and generates nothing")
                return ReplicaObservation(alive=True, readiness=hung)
        token_came = (
            replica.state is ReplicaState.LOADING
            and readiness is not None
            and readiness.state is ReadinessState.READY
            and (question is None or await self._probe.answers(adapter, replica, question))
        )
        return ReplicaObservation(alive=True, readiness=readiness, token_came=token_came)

    async def _generates(self, adapter: EngineAdapter, replica: Replica) -> bool:
        if adapter.metrics_path is None:
            return await self._probe.answers(adapter, replica, Question.TOKEN)
        load = await self._probe.load(adapter, replica)
        return self._generation.progresses(replica.id, load)

    def _is_hung(self, adapter: EngineAdapter, replica: Replica) -> bool:
        """Whether an engine that does not tell it itself generates nothing any more."""
        if adapter.facts.tells_hang or adapter.facts.is_paid:
            return False
        now_s = self._clock.monotonic_s()
        if self._generation.is_due(replica.id, replica.launch_id, now_s):
            self._generation.ask(replica.id, self._generates(adapter, replica))
        return self._generation.is_hung(replica.id, now_s)


def end_of(replica: Replica, launch: Launch | None) -> ReplicaObservation | None:
    """What is to be said of a replica that does not run; None: it does.

    Of one that others run nobody here knows; once it is connected, its answers tell."""
    if replica.upstream is not None:
        return ReplicaObservation(alive=False) if replica.state in not_begun else None
    if launch is None:
        return ReplicaObservation(alive=False)
    if launch.state is not LaunchState.RUNNING:
        return ReplicaObservation(alive=False, last_line=words_of(launch))
    return None


def requests_in(load: EngineLoad) -> int | None:
    """Requests that an engine still has, running and waiting; None if it does not say."""
    if load.running_requests is None:
        return None
    return load.running_requests + (load.waiting_requests or 0)


def words_of(launch: Launch) -> str:
    """Why a process ended, for people."""
    if launch.exit_status is None:
        how = "the process is gone"
    elif launch.exit_status < 0:
        how = f"the process was ended by signal {-launch.exit_status}"
    else:
        how = f"the process ended with status {launch.exit_status}"
    return f"{how}: {launch.last_line}" if launch.last_line else how
