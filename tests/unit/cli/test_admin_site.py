"""One port for the console and the admin API, each for its own paths."""

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headrace.cli.admin_site import create_admin_site
from headrace.console import create_console_app
from headrace.control.admin import create_admin_app
from headrace.storage import open_sqlite


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> ASGIApp:
    database = open_sqlite(tmp_path_factory.mktemp("site") / "headrace.db")
    admin = create_admin_app(database, "an-admin-token-of-30-characters", pepper=b"p" * 32)
    return create_admin_site(admin, create_console_app())


def test_pages_are_public_and_data_is_not(site: ASGIApp) -> None:
    client = TestClient(site, base_url="http://127.0.0.1:8081")
    assert client.get("/").status_code == 200
    assert client.get("/admin/v1/status").status_code == 401
    assert client.get("/admin/nothing").status_code == 401
    assert client.get("/admin").status_code == 404


def test_no_page_is_served_for_a_disguised_admin_path(site: ASGIApp) -> None:
    client = TestClient(site, base_url="http://127.0.0.1:8081")
    for path in ("//admin/v1/tenants", "/static/../admin/v1/tenants", "/%61dmin/v1/tenants"):
        assert client.get(path).status_code in (401, 404)
