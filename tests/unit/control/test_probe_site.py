"""A process manager sees that the control plane lives, and what keeps failing there."""

import pytest
from starlette.testclient import TestClient

from headrace.cli.admin_site import create_admin_site
from headrace.console import create_console_app
from headrace.control.probe_site import ProbeSite


def client(complaint: str) -> TestClient:
    """The control plane's port, as a probe reaches it: by an address that nobody allowed."""
    console = create_console_app()
    site = create_admin_site(console, console, probes=ProbeSite(lambda: complaint))
    return TestClient(site, base_url="http://10.1.2.3:8081")


@pytest.mark.parametrize(("complaint", "state"), [("", "ready"), ("alerts fail", "degraded")])
def test_readiness_tells_what_keeps_failing(complaint: str, state: str) -> None:
    answer = client(complaint).get("/readyz")
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["detail"]) == (state, complaint)


def test_it_lives_whatever_fails() -> None:
    assert client("alerts fail").get("/livez").json() == {"state": "live"}
    assert client("").post("/livez").status_code == 405
