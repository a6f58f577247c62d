"""One launcher over this machine and all nodes: launches of nodes are orders for their agents.

An order is a resource of its node, so it outlives the control plane; what the agent says of it is
in the book. Stopping one deletes the order: the agent ends whatever it has no order for, and starts
nothing new before that ended, so a device never has two users.
"""

import builtins

from headrace.base.clock import Clock
from headrace.base.errors import NotFound, SetupError, Unavailable
from headrace.base.ids import new_id
from headrace.control.nodes.book import NodeBook
from headrace.control.nodes.order_secrets import without_secrets
from headrace.launchers.log_file import newest
from headrace.launchers.protocol import (
    Launch,
    Launcher,
    LaunchSpec,
    LaunchState,
    Place,
    Resources,
    check_one_node,
    no_resources,
)
from headrace.spec.nodes import Node, NodeLaunch, NodeState
from headrace.storage.store import Store

log_wait_s = 5.0  # for the second report from now


class FleetLauncher:
    """Launches here by `local`, elsewhere by order; safe from any thread."""

    def __init__(
        self, store: Store, book: NodeBook, local: Launcher, clock: Clock, pepper: bytes
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._book = book
        self._local = local
        self._clock = clock
        self._read: tuple[int, list[NodeLaunch], dict[str, Node]] = (-1, [], {})

    def place(self, name: str, resources: Resources = no_resources) -> Place:
        """A free port of the node of these resources. SetupError if it has told none, or the
        launch is to span several."""
        check_one_node(resources)
        node = self._remote(resources.node_id)
        if node is None:
            return self._local.place(name, resources)
        port = self._book.take_port(node.id)
        if port is None:
            raise SetupError(f"the node {node.name} has told no free port yet")
        host = node.inventory.address
        return Place(host, port, f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def start(self, spec: LaunchSpec) -> str:
        """Start here, or write an order for the node's agent."""
        node = self._remote(spec.resources.node_id)
        for order in self._store.list(NodeLaunch):
            if order.name == spec.name:  # ended, or its replica would not start again
                self._store.delete(order)
        if node is None:
            return self._local.start(spec)
        environment, secrets = without_secrets(
            self._pepper, spec.name, spec.engine_key_salt, spec.environment
        )
        order = self._store.create(
            NodeLaunch(
                id=new_id(NodeLaunch.id_prefix, self._clock),
                name=spec.name,
                parent_id=node.id,
                create_time=self._clock.wall_s(),
                argv=spec.argv,
                environment=environment,
                secrets=secrets,
                engine_key_salt=spec.engine_key_salt,
                watches_lifeline=spec.watches_lifeline,
                device_ids=spec.resources.device_ids,
                cpu_count=spec.resources.cpu_count,
                memory_bytes=spec.resources.memory_bytes,
                niceness=spec.resources.niceness,
            )
        )
        return order.id

    def list(self) -> builtins.list[Launch]:
        """Launches here and orders, those of lost nodes as ended."""
        revision = self._store.revision()
        known, orders, nodes = self._read
        if revision != known:  # read after the number: what is newer is read once more
            nodes = {node.id: node for node in self._store.list(Node)}
            orders = self._store.list(NodeLaunch)
            self._read = (revision, orders, nodes)
        looked = [self._look_at(order, nodes.get(order.parent_id)) for order in orders]
        return [*self._local.list(), *looked]

    def _look_at(self, order: NodeLaunch, node: Node | None) -> Launch:
        if node is None or node.state is NodeState.LOST:
            why = "its node was removed" if node is None else f"its node {node.name} is lost"
            return Launch(order.id, order.name, LaunchState.ENDED, last_line=why)
        return self._book.launch(order)

    def stop(self, launch_id: str, grace_s: float) -> None:
        """End a launch here, or take an order back."""
        if not launch_id.startswith(f"{NodeLaunch.id_prefix}_"):
            self._local.stop(launch_id, grace_s)
            return
        try:
            self._store.delete(self._store.get(NodeLaunch, launch_id))
        except NotFound:
            return

    def log(self, name: str, bytes_max: int) -> bytes:
        """The output of a launch here, or what its node's agent says of it when asked."""
        for order in self._store.list(NodeLaunch):
            if order.name == name:
                text = self._book.read_log(order.parent_id, order.id, log_wait_s)
                if text is None:
                    raise Unavailable(
                        "its node does not answer; the file is there, in logs of its --node-dir"
                    )
                return newest(text.encode(), bytes_max)
        return self._local.log(name, bytes_max)

    def close(self) -> None:
        """Give back what the local launcher holds."""
        self._local.close()

    def _remote(self, node_id: str) -> Node | None:
        """The node of that id, unless it is this machine. SetupError if it is gone."""
        if not node_id:
            return None
        try:
            node = self._store.get(Node, node_id)
        except NotFound:
            raise SetupError("its node was removed; it gets another one") from None
        return None if node.is_local else node
