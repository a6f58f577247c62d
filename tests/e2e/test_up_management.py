"""Keys, people, the audit log and webhooks on a running platform, process by process."""

import base64
import http.server
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.webhook_signature import signature_is_right, text_prefix
from headrace.storage import open_sqlite

pytestmark = pytest.mark.e2e
revocation_s_max = 5.0  # everywhere


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps what it is told."""

    told: list[tuple[dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.told.append(({k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its base's name)
        """Say nothing."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    told: list[tuple[dict[str, str], bytes]] = []
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Told", (Receiver,), {"told": told})
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", told
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_EGRESS_ALLOWED_HOSTS", "127.0.0.1")
        with PlatformProcess.start(tmp_path_factory.mktemp("up")) as started:
            yield started


def ask(url: str, token: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


@pytest.fixture(scope="module")
def project(platform: PlatformProcess) -> str:
    platform.admin("POST", "/tenants", name="acme", postpaid=True)
    platform.admin("POST", "/projects", tenant="acme", name="web")
    return "acme/web"


def models_status(platform: PlatformProcess, key: str) -> int:
    return ask(f"{platform.gateway_url}/v1/models", key)[0]


def seconds_until(platform: PlatformProcess, key: str, status: int) -> float:
    began_s = time.monotonic()
    wait_until(lambda: models_status(platform, key) == status)
    return time.monotonic() - began_s


def test_a_key_works_rotates_and_ends_at_the_gateway(
    platform: PlatformProcess, project: str
) -> None:
    old = platform.admin("POST", "/keys", project=project, name="ci")["key"]
    seconds_until(platform, old, 200)
    new = platform.admin("POST", "/keys/ci/rotate", overlap_s=3600)["key"]
    seconds_until(platform, new, 200)
    assert models_status(platform, old) == 200
    platform.admin("POST", "/keys/ci/revoke")
    assert seconds_until(platform, new, 401) < revocation_s_max
    bounded = {"project": project, "name": "chat-only", "endpoints": ["chat"]}
    only_chat = platform.admin("POST", "/keys", **bounded)["key"]
    seconds_until(platform, only_chat, 403)
    elsewhere = {"project": project, "name": "far", "allowed_networks": ["203.0.113.0/24"]}
    seconds_until(platform, platform.admin("POST", "/keys", **elsewhere)["key"], 403)


def test_credentials_of_one_listener_open_nothing_on_the_other(
    platform: PlatformProcess, project: str
) -> None:
    key = platform.admin("POST", "/keys", project=project)["key"]
    robot = {"tenant": "acme", "name": "robot", "role": "admin"}
    token = platform.admin("POST", "/service-accounts", **robot)["token"]
    seconds_until(platform, key, 200)
    assert ask(f"{platform.admin_url}/admin/v1/status", key)[0] == 401
    assert ask(f"{platform.admin_url}/admin/v1/status", token)[0] == 200
    for credential in (token, platform.admin_token):
        assert models_status(platform, credential) == 401


def test_a_webhook_is_told_and_can_check_it(
    platform: PlatformProcess,
    project: str,
    receiver: tuple[str, list[tuple[dict[str, str], bytes]]],
) -> None:
    url, told = receiver
    made = platform.admin("POST", "/webhooks", tenant="acme", url=url, name="ops")
    platform.admin("POST", "/webhooks/ops/test")
    wait_until(lambda: bool(told))
    headers, body = told[0]
    assert json.loads(body)["type"] == "test"
    secret = made["secret"].removeprefix(text_prefix)
    assert signature_is_right(base64.b64decode(secret), headers, body, time.time())


def test_the_audit_log_has_it_all_and_holds(platform: PlatformProcess, project: str) -> None:
    verified = platform.admin("GET", "/audit/verify")
    assert verified["sound"] is True
    assert verified["records"] >= 2
    database = open_sqlite(platform.data_dir / "headrace.db")
    try:
        assert database.audit.verify({verified["records"]: verified["head_hash"]}) == []
    finally:
        database.close()
