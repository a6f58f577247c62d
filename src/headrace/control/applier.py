"""Does what was decided: writes to the store, starts and stops processes. Blocks; run in a thread.

What is written before a process starts is enough to find or forget it after a crash at any point:
the replica is LOADING with its address and salt before the launch, and a launch of a replica that
nobody knows is stopped.
"""

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import msgspec

from headrace.adapters.kv_messages import kv_events_port
from headrace.adapters.protocol import EngineAdapter, LaunchRequest, Lora
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError
from headrace.base.ids import new_id
from headrace.control.actions import (
    Action,
    ChangeDeployment,
    ChangeReplica,
    CreateReplica,
    DeleteReplica,
    DescribeVersion,
    LaunchReplica,
    StopReplica,
)
from headrace.control.decide import ControlTimes
from headrace.control.model_targets import follow_version
from headrace.launchers.protocol import Launcher, LaunchSpec, Place, Resources
from headrace.spec.deployments import Deployment, Replica, ReplicaState, Template, Upstream
from headrace.spec.engine_key import engine_key_of, salt_bytes
from headrace.spec.models import Model, ModelVersion
from headrace.spec.node_groups import NodeGroup
from headrace.spec.prefix_key import prefix_key_variable
from headrace.storage.store import Store

stop_grace_s = 10.0


class Applier:
    """The hands of the reconciler."""

    def __init__(
        self,
        *,
        store: Store,
        launcher: Launcher,
        adapters: Mapping[str, EngineAdapter],
        clock: Clock,
        times: ControlTimes,
        cpu_count: int,
        pepper: bytes,
        prefix_key: bytes = b"",
        kv_events_offset: int = 0,
        transaction: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """What is written under one `transaction` is committed together.

        Engines' keys follow from the `pepper`. Under one `prefix_key` all engines name KV blocks
        alike; empty: each has its own."""
        self._pepper = pepper
        self._prefix_key = prefix_key
        self._kv_events_offset = kv_events_offset
        self._transaction = transaction
        self._store = store
        self._launcher = launcher
        self._adapters = adapters
        self._clock = clock
        self._times = times
        self._cpu_count = cpu_count

    def apply(self, action: Action) -> None:
        """Do one thing. Conflict or NotFound if the world moved on: look again."""
        match action:
            case ChangeDeployment(deployment):
                self._change(deployment)
            case DescribeVersion(version):
                self._store.update(version)
            case CreateReplica(deployment, name):
                self._create(deployment, name)
            case ChangeReplica(replica):
                self._store.update(replica)
            case LaunchReplica(deployment, template, replica, model_path):
                self._launch(deployment, template, replica, model_path)
            case StopReplica(replica):
                self._stop(replica)
            case DeleteReplica(replica):
                self._stop(replica)  # forgets a launch that ended
                self._store.delete(self._store.get(Replica, replica.id))

    def stop_launch(self, launch_id: str) -> None:
        """End a launch that belongs to no replica."""
        self._launcher.stop(launch_id, stop_grace_s)

    def _change(self, deployment: Deployment) -> None:
        before = self._store.get(Deployment, deployment.id)
        with self._transaction():
            follow_version(self._store, before, deployment)
            self._store.update(deployment)

    def _create(self, deployment: Deployment, name: str) -> None:
        model = self._store.get(Model, deployment.parent_id)
        self._store.create(
            Replica(
                id=new_id(Replica.id_prefix, self._clock),
                name=name,
                parent_id=deployment.id,
                create_time=self._clock.wall_s(),
                state_time=self._clock.wall_s(),
                generation=deployment.generation,
                engine=deployment.engine,
                model_name=model.name,
                served_model_name=model.name,
            )
        )

    def _launch(
        self, deployment: Deployment, template: Template, replica: Replica, model_path: str
    ) -> None:
        adapter = self._adapters.get(template.engine)
        if adapter is None:
            known = ", ".join(sorted(self._adapters))
            tried = msgspec.structs.replace(replica, attempts=replica.attempts + 1)
            self._fail(tried, f"there is no engine {template.engine!r}; there are: {known}")
            return
        if template.upstream is not None:
            self._connect(template, template.upstream, replica, model_path)
            return
        try:
            place = self._launcher.place(replica.id, resources_of(template, replica))
        except HeadraceError as error:
            tried = msgspec.structs.replace(replica, attempts=replica.attempts + 1)
            self._fail(tried, error.message)
            return
        served_name = adapter.served_name(replica.model_name, model_path)
        loading = self._store.update(self._loading(replica, place, served_name))
        try:
            request = self._request(deployment, template, loading, model_path, place)
            launch_id = self._launcher.start(self._spec(adapter, template, loading, request))
        except HeadraceError as error:
            self._fail(loading, error.message)
            return
        self._store.update(msgspec.structs.replace(loading, launch_id=launch_id))

    def _loading(self, replica: Replica, place: Place, served_name: str) -> Replica:
        """What is known of it before its process starts."""
        now_s = self._clock.wall_s()
        return msgspec.structs.replace(
            replica,
            state=ReplicaState.LOADING,
            state_time=now_s,
            address=place.address,
            peer_port=place.peer_port,
            engine_key_salt=secrets.token_hex(salt_bytes),
            engine_key="",
            served_model_name=served_name,
            attempts=replica.attempts + 1,
            launch_time=now_s,
            first_token_time=None,
            retry_time=None,
            detail="starting",
            progress=None,
        )

    def _spec(
        self, adapter: EngineAdapter, template: Template, replica: Replica, request: LaunchRequest
    ) -> LaunchSpec:
        """What the launcher is told."""
        command = adapter.command(request)
        return LaunchSpec(
            replica.id,
            command.argv,
            {**template.environment, **self._shared_environment, **command.environment},
            command.watches_lifeline,
            resources=resources_of(template, replica),
            image=adapter.facts.image,
            readiness_path=adapter.readiness_path,
            gateway_ports=tuple(filter(None, (request.kv_events_port,))),
            peer_ports=tuple(filter(None, (request.kv_transfer_port,))),
            worker_argv=command.worker_argv,
            engine_key_salt=replica.engine_key_salt,
        )

    def _connect(
        self, template: Template, upstream: Upstream, replica: Replica, model_name: str
    ) -> None:
        """Begin to use an engine that others run; there is nothing to start."""
        self._store.update(
            msgspec.structs.replace(
                replica,
                state=ReplicaState.LOADING,
                state_time=self._clock.wall_s(),
                engine=template.engine,
                address=upstream.address,
                upstream=upstream,
                served_model_name=model_name,
                attempts=replica.attempts + 1,
                launch_time=self._clock.wall_s(),
                first_token_time=None,
                retry_time=None,
                detail="connecting",
                progress=None,
            )
        )

    @property
    def _shared_environment(self) -> dict[str, str]:
        return {prefix_key_variable: self._prefix_key.hex()} if self._prefix_key else {}

    def _request(
        self,
        deployment: Deployment,
        template: Template,
        replica: Replica,
        model_path: str,
        place: Place,
    ) -> LaunchRequest:
        version = self._store.get(ModelVersion, template.model_version_id)
        share = max(1, self._cpu_count // max(1, deployment.replicas))
        if template.resources.cpu_count is not None:
            share = max(1, int(template.resources.cpu_count))
        return LaunchRequest(
            model_path=model_path,
            served_model_name=replica.served_model_name,
            host=place.listen_host,
            port=place.port,
            api_key=engine_key_of(self._pepper, replica),
            threads=template.threads or share,
            context_length=version.context_length,
            tensor_parallel=template.resources.devices_together,
            group=group_of(template, place),
            kv_events_port=kv_events_port(place.port, self._kv_events_offset),
            loras=tuple(Lora(lora.name, lora.source) for lora in template.loras),
            moves_kv=template.moves_kv,
            public_prompts=template.public_prompts,
            kv_transfer_port=place.peer_port if template.moves_kv else 0,
            role=replica.role,
            extra_arguments=template.engine_arguments,
        )

    def _fail(self, replica: Replica, detail: str) -> None:
        pause_s = self._times.backoff_s(replica.attempts)
        now_s = self._clock.wall_s()
        self._store.update(
            msgspec.structs.replace(
                replica,
                state=ReplicaState.FAILED,
                state_time=now_s,
                retry_time=now_s + pause_s,
                detail=detail,
            )
        )

    def _stop(self, replica: Replica) -> None:
        for launch in self._launcher.list():
            if launch.name == replica.id:
                self._launcher.stop(launch.launch_id, stop_grace_s)


def group_of(template: Template, place: Place) -> NodeGroup | None:
    """The nodes that a replica spans; None: one."""
    node_count = template.resources.nodes
    return None if node_count == 1 else NodeGroup(node_count, place.group_port)


def resources_of(template: Template, replica: Replica) -> Resources:
    """What a replica's launch needs, in the launcher's words."""
    wanted = template.resources
    return Resources(
        cpu_count=wanted.cpu_count,
        memory_bytes=wanted.memory_bytes,
        device_count=wanted.devices,
        device_types=wanted.device_types,
        node_labels=wanted.node_labels,
        niceness=wanted.niceness,
        node_count=wanted.nodes,
        node_id=replica.node_id,
        device_ids=replica.device_ids,
    )
