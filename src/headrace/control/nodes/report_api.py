"""The agents' door: POST /node/v1/report, a report for orders, by a node's own token.

Agents only speak outward, so a node needs no open port but its replicas'. Any control plane
answers; one that does not lead sends the agent on to the next address. Reports have threads of
their own: whatever else keeps the process's busy, no node is taken for silent because of it.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import (
    AuthenticationFailed,
    Conflict,
    HeadraceError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unavailable,
)
from headrace.control.nodes.book import NodeBook, changed_inventory
from headrace.control.nodes.labels import check_labels
from headrace.control.nodes.orders import OrderBook, without_known_files
from headrace.http.asgi import (
    Receive,
    Scope,
    Send,
    error_headers,
    header,
    read_body,
    send_json,
)
from headrace.protocol.errors import error_body
from headrace.spec.nodes import Node, NodeOrders, NodeReport
from headrace.spec.token_format import node_tokens
from headrace.storage.store import Store

logger = logging.getLogger(__name__)

path_prefix = "/node/"
report_path = "/node/v1/report"
body_bytes_max = 4 << 20  # a node with thousands of launches
write_attempts_max = 4
address_pattern = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
devices_max = 1024
threads_max = 4  # a report is a look at the store; thousands a second go through so many

Result = TypeVar("Result")


class NodeReportApi:
    """An ASGI application of one route."""

    def __init__(
        self,
        *,
        store: Store,
        pepper: bytes,
        book: NodeBook,
        orders: OrderBook,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._book = book
        self._orders = orders
        self._clock = clock
        self._leads = leads
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="node-reports")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nobody without a node's token learns anything."""
        if scope["type"] != "http":
            return
        try:
            authorization = header(scope, b"authorization")
            node = await self._apart(lambda: self._node_of(authorization))
            if scope["path"] != report_path:
                raise NotFound(f"there is nothing here but {report_path}")
            if scope["method"] != "POST":
                raise MethodNotAllowed(scope["method"], report_path, ("POST",))
            report = read_report(await read_body(receive, body_bytes_max))
            orders = await self._apart(lambda: self._take(node, report))
        except HeadraceError as error:
            await send_error(send, error)
        except Exception:
            logger.exception("a node's report went wrong")
            told = HeadraceError("an unexpected error; the log has it")
            await send_error(send, told)
        else:
            await send_json(send, 200, msgspec.json.encode(orders))

    async def _apart(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _node_of(self, authorization: str | None) -> Node:
        scheme, _, token = (authorization or "").partition(" ")
        parsed = node_tokens.parse(token.strip()) if scheme.lower() == "bearer" else None
        if parsed is not None:
            try:
                node = self._store.get(Node, parsed.owner_id)
            except NotFound:
                node = None
            if node is not None and node_tokens.matches(
                self._pepper, parsed.secret, node.secret_hmac
            ):
                return node
        raise AuthenticationFailed(
            "this token is no node's, or its node was removed; `headrace nodes token NODE` makes "
            "another"
        )

    def _take(self, node: Node, report: NodeReport) -> NodeOrders:
        if not self._leads():
            raise Unavailable("this control plane does not lead; ask another one")
        if changed_inventory(report, node.inventory, node.agent_labels):
            node = self._write(node, report)
        self._book.hear(node.id, report, self._clock.monotonic_s())
        orders = without_known_files(self._orders.of(node), report)
        return msgspec.structs.replace(orders, logs_wanted=self._book.logs_wanted(node.id))

    def _write(self, node: Node, report: NodeReport) -> Node:
        """Keep what the machine has; a new generation of the node."""
        assert report.inventory is not None
        for attempt in range(write_attempts_max):
            try:
                return self._store.update(
                    msgspec.structs.replace(
                        node,
                        inventory=report.inventory,
                        agent_labels=dict(report.labels),
                        generation=node.generation + 1,
                    )
                )
            except Conflict:
                if attempt == write_attempts_max - 1:
                    raise
                node = self._store.get(Node, node.id)
        raise AssertionError("the last attempt returns or raises")


async def send_error(send: Send, error: HeadraceError) -> None:
    """The answer that reports an error."""
    await send_json(send, error.http_status, error_body(error), error_headers(error))


def read_report(body: bytes) -> NodeReport:
    """A report within its bounds; InvalidRequest says what is wrong."""
    try:
        report = msgspec.json.decode(body, type=NodeReport)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"this is no report of a node: {error}") from None
    inventory = report.inventory
    if inventory is not None:
        if not address_pattern.fullmatch(inventory.address):
            raise InvalidRequest("inventory.address: it is a host's name or address")
        if len(inventory.devices) > devices_max:
            raise InvalidRequest(f"inventory.devices: at most {devices_max}")
        ids = [device.id for device in inventory.devices]
        if len(set(ids)) < len(ids) or any(d.memory_bytes < 0 for d in inventory.devices):
            raise InvalidRequest("inventory.devices: ids are unique, and memory is not negative")
    check_labels(report.labels)
    return report
