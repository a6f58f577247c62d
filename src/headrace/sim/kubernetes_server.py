"""A Kubernetes API server on loopback over a fake cluster, with the failures that real ones have.

It speaks list, watch, server-side apply, delete and logs as the real server does, and drops
watches, forgets events, answers conflicts, and refuses, when a test asks for that.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.sim.kubernetes_cluster import Event, FakeCluster, Refused, matches

T = TypeVar("T")
apply_type = "application/apply-patch+yaml"
methods = ["GET", "PATCH", "DELETE"]


class KubernetesServer:
    """A server in a thread; use it as a context manager."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.requests: list[tuple[str, str]] = []  # method, and path with what makes it a watch
        self._refusals: list[tuple[str, int]] = []
        self._changed = asyncio.Event()
        self._watch_epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._sock = socket.socket()
        self._sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        routes = [
            Route("/{root:path}/pods/{name}/log", self._log),
            Route("/{path:path}", self._answer, methods=methods),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, ws="none", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "KubernetesServer":
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self.drop_watches()
        self._thread.join()
        self._sock.close()

    def change(self, act: Callable[[FakeCluster], T]) -> T:
        """Do something to the cluster between two requests, and tell the watches."""

        async def changing() -> T:
            result = act(self.cluster)
            self._tell()
            return result

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(changing(), self._loop).result()

    def drop_watches(self) -> None:
        """End every open watch, as a server that restarts does."""

        def drop(_: FakeCluster) -> None:
            self._watch_epoch += 1

        self.change(drop)

    def refuse(self, method: str, status: int, count: int = 1) -> None:
        """Answer the next requests of this method with an error."""
        self.change(lambda _: self._refusals.extend([(method, status)] * count))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._server.serve(sockets=[self._sock])

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _answer(self, request: Request) -> Response:
        path = "/" + request.path_params["path"]
        watches = request.query_params.get("watch") == "true"
        self.requests.append((request.method, f"{path} (watch)" if watches else path))
        for refusal in self._refusals:
            if refusal[0] == request.method and not watches:
                self._refusals.remove(refusal)
                return refused(Refused(refusal[1], "refused by the test"))
        try:
            if watches:
                return self._watch(path, request)
            return JSONResponse(await self._act(path, request))
        except Refused as error:
            return refused(error)

    async def _act(self, path: str, request: Request) -> Any:
        collection, _, name = path.rpartition("/")
        match request.method:
            case "PATCH":
                if request.headers["content-type"] != apply_type:
                    raise Refused(415, f"an apply is {apply_type}")
                if not request.query_params.get("fieldManager"):
                    raise Refused(400, "an apply names its field manager")
                answer = self.cluster.apply(collection, name, json.loads(await request.body()))
            case "DELETE":
                options = json.loads(await request.body())
                self.cluster.delete(
                    collection,
                    name,
                    options["propagationPolicy"],
                    options.get("gracePeriodSeconds"),
                )
                answer = {"kind": "Status", "status": "Success"}
            case _ if is_collection(path):
                items = self.cluster.collection(path, selector_of(request))
                about = {"resourceVersion": str(self.cluster.version)}
                return {"metadata": about, "items": items}
            case _:
                return self.cluster.get(collection, name)
        self._tell()
        return answer

    def _watch(self, path: str, request: Request) -> Response:
        self.cluster.collection(path, {})  # refuses a kind that is not there
        version = int(request.query_params["resourceVersion"])
        timeout_s = float(request.query_params["timeoutSeconds"])
        selector = selector_of(request)

        async def events() -> AsyncIterator[bytes]:
            seen, epoch = version, self._watch_epoch
            with_deadline = asyncio.timeout(timeout_s)
            try:
                async with with_deadline:
                    while epoch == self._watch_epoch and not self._server.should_exit:
                        if seen < self.cluster.oldest_version:
                            yield line_of("ERROR", {"kind": "Status", "code": 410})
                            return
                        changed = self._changed
                        for event in news(self.cluster, path, seen):
                            seen = event.version
                            if matches(event.thing, selector):
                                yield line_of(event.type, event.thing)
                        await changed.wait()
            except TimeoutError:
                return

        return StreamingResponse(events(), media_type="application/json")

    async def _log(self, request: Request) -> Response:
        key = (request.path_params["name"], request.query_params.get("previous") == "true")
        if key not in self.cluster.logs:
            return refused(Refused(404, "no such log"))
        return PlainTextResponse(self.cluster.logs[key])


def news(cluster: FakeCluster, path: str, seen: int) -> list[Event]:
    """The events of a collection after a version."""
    return [event for event in cluster.events if event.path == path and event.version > seen]


def line_of(kind: str, thing: Any) -> bytes:
    """An event on the wire."""
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def selector_of(request: Request) -> dict[str, str]:
    """The labels that a request asks for."""
    text = request.query_params.get("labelSelector", "")
    return dict(part.split("=", 1) for part in text.split(",") if part)


def is_collection(path: str) -> bool:
    """Whether a path ends with the plural of a kind in a namespace."""
    return path.split("/")[-3] == "namespaces"


def refused(error: Refused) -> Response:
    """An error as a Status object."""
    body = {"kind": "Status", "status": "Failure", "message": str(error), "code": error.status}
    return JSONResponse(body, status_code=error.status)
