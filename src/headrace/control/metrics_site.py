"""What Prometheus asks of the control plane's port.

    /metrics                  the control plane's own
    /metrics/targets          every replica, as Prometheus' HTTP service discovery reads it
    /metrics/replicas/ID      one replica's, asked of its engine at that moment

Replicas come and go, listen where only the platform reaches them, and answer only to keys of their
own, so a scraper is led to each of them through here and needs none of those keys. It is open to
programs of this machine and to whoever shows the metrics token.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping

from starlette.types import Receive, Scope, Send

from headrace.adapters.protocol import EngineAdapter
from headrace.base.absence import Absence
from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, NotFound
from headrace.control.probe import credential_of
from headrace.http.asgi import header, json_header, send_bytes
from headrace.http.callers import bearer_of, is_local
from headrace.http.client import Asker
from headrace.observability.metrics import content_type, openmetrics_content_type
from headrace.spec.deployments import Deployment, Replica, ReplicaState
from headrace.spec.nodes import Node
from headrace.spec.platform_token import is_metrics_token
from headrace.storage.store import Store

logger = logging.getLogger(__name__)

path = "/metrics"
targets_path = f"{path}/targets"
replicas_path = f"{path}/replicas/"
scraped_at_once_max = 16
ask_timeout_s = 8.0  # less than the ten seconds that Prometheus waits
answer_bytes_max = 16 << 20
scraped_states = (ReplicaState.LOADING, ReplicaState.ACTIVE, ReplicaState.DRAINING)
openmetrics_end = b"# EOF\n"
text_header = (b"content-type", b"text/plain; charset=utf-8")


class MetricsSite:
    """The three paths as one ASGI application."""

    def __init__(
        self,
        own_text: Callable[[], bytes],
        *,
        store: Store,
        client: Asker,
        adapters: Mapping[str, EngineAdapter],
        pepper: bytes,
        clock: Clock,
    ) -> None:
        self._away = Absence(
            logger,
            clock,
            "replicas' metrics wait for the store",
            "replicas' metrics are told again",
        )
        self._own_text = own_text
        self._store = store
        self._client = client
        self._adapters = adapters
        self._pepper = pepper
        self._slots = asyncio.Semaphore(scraped_at_once_max)

    def serves(self, scope: Scope) -> bool:
        """Whether a request is for these paths."""
        asked = scope["path"]
        return asked in (path, targets_path) or asked.startswith(replicas_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if not is_local(scope) and not is_metrics_token(self._pepper, bearer_of(scope)):
            hint = b"Metrics are for programs of this machine, and for whoever shows the token.\n"
            await send_bytes(send, 401, hint, [text_header, (b"www-authenticate", b"Bearer")])
        elif scope["method"] not in ("GET", "HEAD"):
            await send_bytes(send, 405, b"", [(b"allow", b"GET, HEAD")])
        elif scope["path"] == path:
            text = await asyncio.to_thread(self._own_text)
            await send_bytes(send, 200, text, [(b"content-type", content_type)])
        else:
            await self._send_of_replicas(scope, send)

    async def _send_of_replicas(self, scope: Scope, send: Send) -> None:
        """What the store knows of them, or one's metrics; 503 while the store is away, so that no
        scraper takes them to be gone."""
        asked = scope["path"]
        try:
            if asked == targets_path:
                found = await asyncio.to_thread(self._targets, header(scope, b"host") or "")
                self._away.end()
                await send_bytes(send, 200, json.dumps(found).encode(), [json_header])
                return
            replica_id = asked.removeprefix(replicas_path)
            replica = await asyncio.to_thread(self._store.get, Replica, replica_id)
        except NotFound:
            await send_bytes(send, 404, b"There is no such replica.\n", [text_header])
        except HeadraceError as error:
            self._away.note(error)
            hint = b"The store does not answer; try again, and see the control plane's log.\n"
            await send_bytes(send, 503, hint, [text_header])
        else:
            self._away.end()
            await self._relay(replica, header(scope, b"accept") or "text/plain", send)

    def _targets(self, host: str) -> list[dict[str, object]]:
        """One group a replica; the address is this one, by the name under which it was asked."""
        deployments = {item.id: item.name for item in self._store.list(Deployment)}
        nodes = {node.id: node.name for node in self._store.list(Node)}
        return [
            {
                "targets": [host],
                "labels": {
                    "__metrics_path__": replicas_path + replica.id,
                    "instance": replica.name,
                    "replica": replica.name,
                    "deployment": deployments.get(replica.parent_id, ""),
                    "node": nodes.get(replica.node_id, ""),
                },
            }
            for replica in self._store.list(Replica)
            if self._metrics_url(replica) is not None
        ]

    def _metrics_url(self, replica: Replica) -> str | None:
        """Where its engine's metrics are; None if it has none, or does not run."""
        adapter = self._adapters.get(replica.engine)
        if adapter is None or adapter.metrics_path is None:
            return None
        if replica.state not in scraped_states or not replica.address:
            return None
        return replica.address + adapter.metrics_path

    async def _relay(self, replica: Replica, accepted: str, send: Send) -> None:
        """What its engine says now: 404 if it tells no metrics, 502 if it does not answer."""
        url = self._metrics_url(replica)
        credential = credential_of(replica, self._pepper)
        if url is None or credential is None:
            await send_bytes(send, 404, b"This replica tells no metrics now.\n", [text_header])
            return
        keys = self._adapters[replica.engine].headers(credential) if credential else {}
        try:
            async with self._slots:
                answer = await self._client.fetch(
                    "GET",
                    url,
                    headers={**keys, "Accept": accepted},
                    timeout_s=ask_timeout_s,
                    limit_bytes=answer_bytes_max,
                )
        except HeadraceError:
            await send_bytes(send, 502, b"Its engine does not answer.\n", [text_header])
            return
        if answer.status != 200:
            await send_bytes(
                send, 502, f"Its engine answers {answer.status}.\n".encode(), [text_header]
            )
            return
        # The type is ours: nothing that an engine says is shown to a browser as a page.
        is_openmetrics = answer.body.endswith(openmetrics_end)
        kind = openmetrics_content_type if is_openmetrics else content_type
        await send_bytes(send, 200, answer.body, [(b"content-type", kind)])
