"""The one writer of what is thought of nodes, and of the places of replicas.

It looks when the store changed, and once a second; a look reads the world and writes what differs,
each resource by its version, so that a lost race is made up for by the next look.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import Conflict, HeadraceError, NotFound
from headrace.base.ids import new_id
from headrace.base.loops import Pause, pause_unless
from headrace.control.nodes.book import NodeBook
from headrace.control.nodes.orders import model_order
from headrace.control.nodes.placing import (
    PlacingView,
    explain_deployment,
    local_node_name,
    plan,
)
from headrace.control.nodes.quarantine import QuarantineWatch
from headrace.control.nodes.standing import NodeTimes, Standing, judge
from headrace.control.placement.explain import NodeVerdict
from headrace.control.world import ModelFileState
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.models import ModelVersion
from headrace.spec.nodes import Inventory, Node, NodeState
from headrace.spec.resource import Resource
from headrace.storage.store import Store

R = TypeVar("R", bound=Resource)

logger = logging.getLogger(__name__)

tick_s = 0.2  # how late a new replica may be seen
look_interval_s = 1.0  # between looks while the store does not change


class NodeLoop:
    """Judges nodes and places replicas, while this control plane leads."""

    def __init__(
        self,
        *,
        store: Store,
        book: NodeBook,
        clock: Clock,
        leads: Callable[[], bool],
        local: Inventory | None,
        times: NodeTimes | None = None,
        region: str = "",
        zone: str = "",
        pause: Pause = pause_unless,
    ) -> None:
        """`local` is what this machine has for replicas; None: it runs none. `pause` waits for
        seconds, or until an event is set."""
        self._pause = pause
        self._store = store
        self.book = book
        self._clock = clock
        self._leads = leads
        self._local = local
        self._where = (region, zone)
        self._times = times or NodeTimes()
        self._quarantine = QuarantineWatch()
        self._nodes: dict[str, Node] = {}
        self.standing = Standing({}, {})
        self._thawed_s = -math.inf  # when nodes were last frozen no more

    @property
    def frozen_reason(self) -> str:
        """Why nothing is moved from silent nodes; empty: it is."""
        return self.standing.frozen_reason

    def silence_s(self, node_id: str) -> float:
        """How long a node has said nothing."""
        return self.book.silence_s(node_id, self._clock.monotonic_s())

    def forget(self, node_id: str) -> None:
        """A node that was removed."""
        self.book.forget(node_id)

    def explain(self, deployment: Deployment) -> list[NodeVerdict]:
        """Every node's verdict for one more replica of a deployment."""
        return explain_deployment(self.view(), deployment)

    def file_state(self, replica: Replica, version: ModelVersion) -> ModelFileState | None:
        """A model's file where a replica has its place; None where that is this machine."""
        node = self._nodes.get(replica.node_id)
        if node is not None and node.is_local:
            return None
        return self.book.model(replica.node_id, model_order(version))

    async def run(self, stop: asyncio.Event) -> None:
        """Look until told to stop."""
        seen_revision, due_s = -1, 0.0
        away = Absence(logger, self._clock, "nodes wait for the store", "nodes are looked at again")
        while not stop.is_set():
            try:
                now_s = self._clock.monotonic_s()
                revision = await asyncio.to_thread(self._store.revision)
                if self._leads() and (revision != seen_revision or now_s >= due_s):
                    seen_revision, due_s = revision, now_s + look_interval_s
                    await asyncio.to_thread(self.look)
                    away.end()
            except HeadraceError as error:
                away.note(error)
            await self._pause(stop, tick_s)

    def look(self) -> None:
        """Judge, then place; what another writer changed meanwhile is left to the next look."""
        self._ensure_local()
        nodes = self._judged(self._store.list(Node))
        self._nodes = {node.id: node for node in nodes}
        replicas = self._store.list(Replica)
        self._close_bad(nodes, replicas)
        for replica in plan(self.view(replicas)):
            self._write(replica)

    def view(self, replicas: Sequence[Replica] | None = None) -> PlacingView:
        """What places depend on, as it is now."""
        versions = self._store.list(ModelVersion)
        deployments = self._store.list(Deployment)
        replicas = self._store.list(Replica) if replicas is None else replicas
        return PlacingView(
            now_s=self._clock.wall_s(),
            nodes=self._store.list(Node),
            deployments=deployments,
            replicas=ours(replicas, deployments),
            silent=frozenset(self.standing.silent),
            warm_nodes=self._warm(versions),
        )

    def _warm(self, versions: Sequence[ModelVersion]) -> dict[str, frozenset[str]]:
        """By model version, the nodes that have its files."""
        held: dict[tuple[str, str | None], set[str]] = {}
        for node_id in self.book.heard:
            for model in self.book.models(node_id):
                if model.path is not None:
                    held.setdefault((model.source, model.sha256), set()).add(node_id)
        return {
            version.id: frozenset(held.get((version.source, version.sha256), ()))
            for version in versions
        }

    def _ensure_local(self) -> None:
        """This machine is a node as well."""
        region, zone = self._where
        known = self._store.find(Node, local_node_name)
        if known is None and self._local is None:
            return
        here = self._local or Inventory()  # nothing: no replica fits
        if known is None:
            self._store.create(
                Node(
                    id=new_id(Node.id_prefix, self._clock),
                    name=local_node_name,
                    create_time=self._clock.wall_s(),
                    region=region,
                    zone=zone,
                    inventory=here,
                    state=NodeState.READY,
                    state_time=self._clock.wall_s(),
                )
            )
            return
        told = msgspec.structs.replace(known, inventory=here, region=region, zone=zone)
        if told != known:
            self._write(msgspec.structs.replace(told, generation=known.generation + 1))

    def _judged(self, nodes: Sequence[Node]) -> list[Node]:
        now_s = self._clock.monotonic_s()
        grace_s = now_s - self._thawed_s
        silences = {node.id: min(grace_s, self.book.silence_s(node.id, now_s)) for node in nodes}
        before = self.standing.frozen_reason
        self.standing = judge(nodes, silences, self.book.heard, self._times)
        if before and not self.standing.frozen_reason:
            self._thawed_s = now_s  # those that come back a little later are no single losses
            silences = dict.fromkeys(silences, 0.0)
            self.standing = judge(nodes, silences, self.book.heard, self._times)
        if self.standing.frozen_reason != before:
            logger.warning("nodes: %s", self.standing.frozen_reason or "no longer frozen")
        judged = []
        for node in nodes:
            state = self.standing.states.get(node.id)
            if state is None:
                judged.append(node)
                continue
            level = logging.INFO if state is NodeState.READY else logging.WARNING
            logger.log(level, "the node %s is %s", node.name, state.value)
            told = msgspec.structs.replace(node, state=state, state_time=self._clock.wall_s())
            judged.append(self._write(told) or node)
        return judged

    def _close_bad(self, nodes: Sequence[Node], replicas: Sequence[Replica]) -> None:
        """Put nodes into quarantine where replicas do not start."""
        now_s = self._clock.wall_s()
        suspects = self._quarantine.suspects(replicas)
        for node in nodes:
            reason = suspects.get(node.id)
            if reason is None:
                continue
            self._quarantine.forgive(node.id)
            logger.warning("the node %s is in quarantine: %s", node.name, reason)
            until = now_s + self._times.quarantine_s
            closed = msgspec.structs.replace(node, quarantine_until=until, quarantine_reason=reason)
            self._write(closed)

    def _write(self, resource: R) -> R | None:
        """The resource as it is kept now; None if another writer was faster."""
        try:
            return self._store.update(resource)
        except (Conflict, NotFound) as overtaken:
            logger.info("%s %s: %s", resource.kind, resource.name, overtaken.message)
            return None


def ours(replicas: Sequence[Replica], deployments: Sequence[Deployment]) -> list[Replica]:
    """The replicas that need a place: those that headrace starts."""
    by_id = {deployment.id: deployment for deployment in deployments}
    placed = []
    for replica in replicas:
        deployment = by_id.get(replica.parent_id)
        template = None if deployment is None else deployment.template_of(replica.generation)
        is_upstream = replica.upstream is not None or (
            template is not None and template.upstream is not None
        )
        if not is_upstream:
            placed.append(replica)
    return placed
