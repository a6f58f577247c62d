"""A Kubernetes API server, as much of it as launching needs: apply, list, watch, delete, logs.

Objects are plain data. Only this module knows the client library (extra `kubernetes`), which
brings what is hard to do well: kubeconfig files, service accounts, and tokens that are renewed.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base.errors import ConfigurationError, SetupError, Unavailable
from headrace.launchers.kubernetes.parts import KubernetesObject, manager

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

request_timeout_s = 15.0
watch_s = 30  # how long the server keeps a watch; a dead connection is noticed a little later
watch_slack_s = 10.0
apply_attempts_max = 5  # others write the same objects, and servers restart
apply_pause_s = 0.2  # before the second attempt; doubled for each further one
log_lines = 20
log_bytes_max = 16 << 10
in_cluster_variable = "KUBERNETES_SERVICE_HOST"

plurals = {
    "Secret": "secrets",
    "Service": "services",
    "Pod": "pods",
    "Deployment": "deployments",
    "LeaderWorkerSet": "leaderworkersets",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
}


class ClusterRefused(SetupError):
    """The API server said no; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def collection_path(api_version: str, kind: str, namespace: str) -> str:
    """The path of all objects of a kind in a namespace."""
    root = "/api" if "/" not in api_version else "/apis"
    return f"{root}/{api_version}/namespaces/{namespace}/{plurals[kind]}"


def object_path(thing: KubernetesObject) -> str:
    """The path of one object."""
    about = thing["metadata"]
    collection = collection_path(thing["apiVersion"], thing["kind"], about["namespace"])
    return f"{collection}/{about['name']}"


async def connect(server: str | None = None) -> "ApiClient":
    """A client of the cluster that this pod runs in, else of the kubeconfig's, else `server`.

    ConfigurationError if there is none, or the extra is not installed."""
    try:
        from kubernetes_asyncio import client, config  # noqa: PLC0415 -- an extra, and slow to load
    except ImportError:
        raise ConfigurationError(
            "replicas on Kubernetes need the Kubernetes client: pip install 'headrace[kubernetes]'"
        ) from None
    settings = client.Configuration(host=server)
    try:
        if server is None and os.environ.get(in_cluster_variable):
            load_own: Any = config.load_incluster_config  # which has no annotations
            load_own(client_configuration=settings)
        elif server is None:
            await config.load_kube_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise ConfigurationError(
            f"no Kubernetes cluster is configured ({error}); run in a pod with a service account, "
            "or set KUBECONFIG"
        ) from None
    return client.ApiClient(settings)


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"


class Cluster:
    """Calls of one event loop."""

    def __init__(self, client: "ApiClient") -> None:
        self._client = client

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.close()

    async def apply(self, thing: KubernetesObject) -> KubernetesObject:
        """Server-side apply: our fields as given, the fields of others as they are."""
        pause_s = apply_pause_s
        for attempt in range(apply_attempts_max):
            is_last = attempt + 1 == apply_attempts_max
            try:
                return await self._patch(thing)
            except Unavailable:
                if is_last:
                    raise
            except ClusterRefused as error:
                if is_last or error.status != 409:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    async def _patch(self, thing: KubernetesObject) -> KubernetesObject:
        made: KubernetesObject = msgspec.json.decode(
            await self._send(
                Call(
                    "PATCH",
                    object_path(thing),
                    {"fieldManager": manager, "force": "true"},
                    thing,
                    "application/apply-patch+yaml",
                )
            )
        )
        return made

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        path = f"{collection_path(api_version, kind, namespace)}/{name}"
        try:
            return msgspec.json.decode(await self._send(Call("GET", path)))
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise

    async def list(self, path: str, selector: str) -> tuple[list[KubernetesObject], str]:
        """The objects with these labels, and the version of the collection to watch from."""
        answer = msgspec.json.decode(
            await self._send(Call("GET", path, {"labelSelector": selector}))
        )
        return answer["items"], answer["metadata"]["resourceVersion"]

    async def delete(self, path: str, *, propagation: str, grace_s: int | None = None) -> None:
        """Delete one object; nothing happens if it is not there."""
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._send(Call("DELETE", path, body=options))
        except ClusterRefused as error:
            if error.status != 404:
                raise

    async def log(
        self,
        namespace: str,
        pod: str,
        *,
        previous: bool,
        lines: int = log_lines,
        bytes_max: int = log_bytes_max,
    ) -> str:
        """The end of a container's output; empty if it is not there any more."""
        path = f"{collection_path('v1', 'Pod', namespace)}/{pod}/log"
        query = {
            "tailLines": str(lines),
            "limitBytes": str(bytes_max),
            "previous": str(previous).lower(),
        }
        try:
            data = await self._send(Call("GET", path, query))
        except (ClusterRefused, Unavailable):
            return ""
        return data.decode(errors="replace")

    async def watch(
        self, path: str, selector: str, version: str
    ) -> AsyncIterator[Mapping[str, Any]]:
        """The events since a version; ends when the server ends it, the connection breaks, or the
        version is too old for the server."""
        query = {
            "labelSelector": selector,
            "resourceVersion": version,
            "watch": "true",
            "timeoutSeconds": str(watch_s),
        }
        response = await self._open(Call("GET", path, query), watch_s + watch_slack_s)
        try:
            if response.status != 200:
                return
            async for line in response.content:
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":  # 410 Gone, most often
                    return
                yield event
        finally:
            response.close()

    async def _send(self, call: Call) -> bytes:
        import aiohttp  # noqa: PLC0415 -- the client library's own transport

        response = await self._open(call, request_timeout_s)
        try:
            data: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(error) from None
        finally:
            response.release()
        if 200 <= response.status < 300:
            return data
        message = f"the Kubernetes API server answered {response.status}: {words_of(data)}"
        if response.status == 429 or response.status >= 500:
            raise Unavailable(message)
        raise ClusterRefused(response.status, message)

    async def _open(self, call: Call, timeout_s: float) -> Any:
        import aiohttp  # noqa: PLC0415 -- the client library's own transport

        headers = {"Accept": "application/json", "Content-Type": call.content_type}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            return await self._client.request(
                call.method,
                f"{self._client.configuration.host}{call.path}",
                query_params=list(call.query.items()),
                headers=headers,
                body=call.body,
                _preload_content=False,
                _request_timeout=timeout_s,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(error) from None


def unreachable(error: BaseException) -> Unavailable:
    """What a broken connection means to callers."""
    words = str(error) or type(error).__name__
    return Unavailable(f"the Kubernetes API server cannot be reached ({words}); trying again")


def words_of(body: bytes) -> str:
    """What a Status object says, for people."""
    try:
        return str(msgspec.json.decode(body)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
