"""What the control plane's port serves: /admin/, /node/, metrics, probes, and else the console.

The admin API and the console don't know each other. The split by path gives nothing away: the
admin API, the nodes' and the metrics authenticate all that reaches them, and the console holds no
data. The console's playground lets through whom the admin API knows, which is
asked by a request of its own with the same headers.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.console.playground import Playground
from headrace.console.playground import prefix as playground_prefix
from headrace.control.metrics_site import MetricsSite
from headrace.control.probe_site import ProbeSite
from headrace.http.client import HttpClient

admin_path_prefix = "/admin/"
node_path_prefix = "/node/"
asked_path = "/admin/v1/status"  # open to everyone who signed in, and to nobody else


def create_admin_site(
    admin_app: ASGIApp,
    console_app: ASGIApp,
    *,
    gateway_url: str | None = None,
    client: HttpClient | None = None,
    metrics: MetricsSite | None = None,
    probes: ProbeSite | None = None,
    node_app: ASGIApp | None = None,
) -> ASGIApp:
    """Join the applications on one port; without a gateway there is no playground."""
    playground = None
    if gateway_url is not None and client is not None:
        playground = Playground(gateway_url, client, SignedIn(admin_app))

    async def site(scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        if is_http and playground and scope["path"].startswith(playground_prefix + "/"):
            await playground(scope, receive, send)
            return
        if is_http and metrics and metrics.serves(scope):
            await metrics(scope, receive, send)
            return
        if is_http and probes and probes.serves(scope):
            await probes(scope, receive, send)
            return
        if is_http and node_app and scope["path"].startswith(node_path_prefix):
            await node_app(scope, receive, send)
            return
        is_page = is_http and not scope["path"].startswith(admin_path_prefix)
        await (console_app if is_page else admin_app)(scope, receive, send)

    return site


class SignedIn:
    """Whether the admin API knows whoever sent a request."""

    def __init__(self, admin_app: ASGIApp) -> None:
        self._admin_app = admin_app

    async def __call__(self, scope: Scope) -> bool:
        """Ask for the status with the request's own headers, without its body."""
        statuses: list[int] = []

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [item for item in scope["headers"] if item[0] != b"content-length"]
        asked = {
            "type": "http",
            "asgi": scope["asgi"],
            "http_version": scope["http_version"],
            "method": "GET",
            "scheme": scope["scheme"],
            "path": asked_path,
            "raw_path": asked_path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": scope["client"],
            "server": scope["server"],
        }
        await self._admin_app(asked, nothing, note)
        return statuses == [200]
